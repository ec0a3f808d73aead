"""The rules about evaluations."""

from collections.abc import Iterator, Sequence

from agentrl.config.entries import notes_on_rendering
from agentrl.config.eval_sets import ALONE, EvalSet
from agentrl.config.lengths import about_lengths
from agentrl.config.model import ModelSummary
from agentrl.config.run import RunConfig
from agentrl.config.sampling import about_sampling, notes_on_sampling

__all__ = ["about_evaluations", "about_set", "notes_on_evaluations"]

_FLAG = "--eval-prompt-data"


def about_evaluations(config: RunConfig) -> Iterator[str]:
    """What contradicts itself, and what cannot be an evaluation beside training."""
    if config.eval_config is not None and config.eval_prompt_data:
        yield (
            f"--eval-config and {_FLAG}: the sets are those of the file alone, as in slime; give "
            "one of the two"
        )
    yield from _about_apart(config)
    interval, iterations = config.eval_interval, config.num_rollout
    if config.eval_mode == "pinned" and interval and iterations and iterations <= interval:
        yield (
            f"--eval-mode pinned with --eval-interval {interval} and --num-rollout {iterations}: "
            "no evaluation beside training would come before the last push; lower "
            f"--eval-interval below {iterations}, or leave both out"
        )


def _about_apart(config: RunConfig) -> Iterator[str]:
    """What evaluations on engines of their own cannot be combined with."""
    if not config.evaluates_apart:
        return
    if config.colocate:
        yield (
            "--eval-mode apart and --colocate: the learner would write the weights while the "
            "engines have its memory; give --eval-mode pinned"
        )
    if config.plays_only:
        yield "--eval-mode apart and --debug-rollout-only: no weights are trained; leave it out"
    if config.loads_rollouts:
        yield (
            "--eval-mode apart and --load-debug-rollout-data: such a run starts no engines; "
            "leave it out"
        )
    if config.ray_address is not None and config.save is None:
        yield (
            "--eval-mode apart needs --save under --ray-address: the learner writes the weights "
            "to that folder, where engines on all nodes read them"
        )


def about_set(one: EvalSet, model: ModelSummary) -> Iterator[str]:
    """What the flags of one set make impossible."""
    for line in (*about_sampling(one.config), *about_lengths(one.config, model)):
        yield f"evaluation set {one.name}: {line}"


def notes_on_evaluations(config: RunConfig, sets: Sequence[EvalSet]) -> Iterator[str]:
    """How `sets` were understood, where somebody may have meant another thing."""
    for one in (one for one in sets if one.config != config):
        yield from (f"evaluation set {one.name}: {line}" for line in notes_on_sampling(one.config))
    yield from notes_on_rendering(
        config, [(f"evaluation set {one.name}", one.config) for one in sets]
    )
    if len(config.eval_prompt_data) == 1:
        yield (
            f"{_FLAG} {config.eval_prompt_data[0]}: a path alone is a set that is called {ALONE}, "
            "as in slime; write NAME PATH to name it"
        )
