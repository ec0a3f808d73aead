"""Checkpoints and models that a run keeps, and the room that they take."""

from collections.abc import Collection, Iterator

from agentrl.config.conditions import has_shipped_estimator
from agentrl.config.learner_memory import checkpoint_bytes
from agentrl.config.model import ModelSummary
from agentrl.config.plan import in_units
from agentrl.config.run import RunConfig
from agentrl.numbered import about_template

__all__ = ["about_retention", "notes_on_retention"]


def about_retention(config: RunConfig) -> Iterator[str]:
    """What contradicts itself, with the numbers."""
    every, interval = config.save_retain_interval, config.save_interval
    if every is not None and every % interval:
        yield (
            f"--save-retain-interval {every} is no multiple of --save-interval {interval}: few of "
            f"the iterations that it keeps would be saved; make it one"
        )
    if config.save_hf is not None and (wrong := about_template(config.save_hf)):
        yield f"--save-hf {config.save_hf}: {wrong}"


def notes_on_retention(
    config: RunConfig, model: ModelSummary, models: Collection[str] | None = None
) -> Iterator[str]:
    """What a folder of the user's own will hold in the end, where that can be known. `models`:
    those that an estimator of the user's needs; nothing is told of one that was not asked yet."""
    if models is None and not has_shipped_estimator(config):
        return
    if config.eval_only or config.save is None or not (config.num_rollout and model.num_parameters):
        return
    every = config.save_retain_interval or config.save_interval
    # The last iteration is saved in any case, and the one before it is kept to fall back to.
    count = -(-config.num_rollout // every) + (config.save_retain_interval is not None)
    each = checkpoint_bytes(config, model.num_parameters, models)
    yield (
        f"--save {config.save} gets {count} checkpoints of about {in_units(each)}, together "
        f"{in_units(count * each)}"
        + ("" if config.save_retain_interval else ": all are kept, unless --save-retain-interval")
    )
