"""The algorithm that the flags ask for. The kind of loss is branched on here alone.

    policy_loss    --advantage-estimator
    custom_loss    the same, with the loss of --custom-loss-function-path
    sft_loss       `sft`

Functions of the user's may stand in for a part of an estimator: `custom_rewards` for the statistics
of groups, `custom_advantages` for what tokens get, `correction` for the weight of their mismatch.

An estimator is agentrl's own, or a class of the user's: a subclass of `base.Algorithm` whose `Args`
are filled by --algorithm-args. Refused are arguments that it does not take, a group that is too
small for it, and a class that would play no episodes.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.correction import CORRECTIONS
from agentrl.algorithms.custom import LOSSES, with_loss
from agentrl.algorithms.custom_advantages import ADVANTAGES, with_advantages
from agentrl.algorithms.custom_rewards import REWARDS, of_the_lease, with_rewards
from agentrl.algorithms.reducer import REDUCERS
from agentrl.algorithms.sft import Sft
from agentrl.config.fields import own_fields
from agentrl.config.first_weights import about_reference
from agentrl.config.flags.objective import ObjectiveFlags
from agentrl.config.mixture import temperatures
from agentrl.config.objective import about_critic
from agentrl.config.rates import about_critics_rate
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_for_such_a_run, is_read
from agentrl.errors import ConfigError
from agentrl.shipped import ALGORITHMS
from agentrl.telemetry.metrics import REGISTRY
from agentrl.user_code import Kind, hint, load

__all__ = ["ESTIMATORS", "check_algorithm", "load_algorithm", "shown_algorithm", "users_flag"]


def _take(value: object) -> type[Algorithm] | None:
    is_one = isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm
    return value if is_one else None  # type: ignore[return-value]


ESTIMATORS: Kind[type[Algorithm]] = Kind(
    group="agentrl.algorithms",
    noun="algorithm",
    must_be="a subclass of agentrl.algorithms.base.Algorithm",
    write="`class Mine(Algorithm):` with `values`, `credit` or `advantages`",
    take=_take,
    builtin=ALGORITHMS.places,
    flag="--advantage-estimator",
)


def load_algorithm(cfg: RunConfig) -> Algorithm:
    """The algorithm of this run, without any state. Raises ConfigError."""
    if cfg.loss_type == "sft_loss":
        return Sft(cfg, None)
    cls = load(ESTIMATORS, cfg.advantage_estimator)
    args = _args(cls, cfg)
    _declare(cls)
    if cfg.custom_reward_post_process_path is not None:
        cls = with_rewards(cls, load(REWARDS, cfg.custom_reward_post_process_path))
    converts = is_for_such_a_run(cfg, "custom_convert_samples_to_train_data_path")
    if converts and cfg.custom_convert_samples_to_train_data_path is not None:
        cls = with_rewards(cls, of_the_lease)
    if cfg.custom_advantage_function_path is not None:
        cls = with_advantages(cls, load(ADVANTAGES, cfg.custom_advantage_function_path))
    if cfg.loss_type == "custom_loss":
        cls = with_loss(cls, load(LOSSES, str(cfg.custom_loss_function_path)))
    if cfg.scale_lr_by_ess and cls.state is not Algorithm.state:
        raise ConfigError(
            f"--scale-lr-by-ess with --advantage-estimator {cfg.advantage_estimator}: its `state` "
            "would not hold the reference; scale in its own `lr_scale`, and leave the flag out"
        )
    algorithm = cls(cfg, args)
    if not algorithm.needs.engines:
        raise ConfigError(
            f"--advantage-estimator {cfg.advantage_estimator} needs no engines: only --loss-type "
            "sft_loss trains on dialogues that nobody sampled"
        )
    return algorithm


def users_flag(cfg: RunConfig) -> str | None:
    """The flags by which the algorithm, its loss or a part of it is the user's; None where none
    is."""
    flags = []
    if cfg.loss_type != "sft_loss" and cfg.advantage_estimator not in ESTIMATORS.builtin:
        flags.append(f"{ESTIMATORS.flag} {cfg.advantage_estimator}")
    if cfg.loss_type == "custom_loss":
        flags.append(f"{LOSSES.flag} {cfg.custom_loss_function_path}")
    for kind, path in (
        (REWARDS, cfg.custom_reward_post_process_path),
        (ADVANTAGES, cfg.custom_advantage_function_path),
        (CORRECTIONS, cfg.custom_tis_function_path),
        (REDUCERS, cfg.custom_pg_loss_reducer_function_path),
    ):
        flags += [f"{kind.flag} {path}"] if path is not None else []
    return " with ".join(flags) or None


def shown_algorithm(cfg: RunConfig) -> Algorithm | None:
    """What credited the episodes of a run, for those who only look at it: None where that would run
    code of the user's, or where nothing is credited."""
    if cfg.loss_type == "sft_loss" or cfg.advantage_estimator not in ESTIMATORS.builtin:
        return None
    if cfg.custom_reward_post_process_path or cfg.custom_advantage_function_path:
        return None
    if cfg.rollout_data_postprocess_path or cfg.rollout_sample_filter_path:
        return None
    if cfg.custom_convert_samples_to_train_data_path:
        return None
    # neither a loss nor a correction nor a reducer gives credit
    without: dict[str, Any] = dict.fromkeys(
        ("custom_tis_function_path", "custom_pg_loss_reducer_function_path")
    )
    return load_algorithm(msgspec.structs.replace(cfg, loss_type="policy_loss", **without))


def check_algorithm(cfg: RunConfig, said: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for an algorithm that cannot run with these flags, and for one of agentrl's
    own that does not read one of them. `said`: the fields that somebody set, as they were
    spelled."""
    algorithm = load_algorithm(cfg)
    _refuse_unread(cfg, algorithm, said or {})
    if algorithm.needs.logits:
        _require_whole_logits(cfg)
    # it may be the user's, of whose models the flags know nothing
    if "reference" in algorithm.needs.models:
        for problem in about_reference(cfg):
            raise ConfigError(problem)
    if "critic" in algorithm.needs.models:
        _require_critic(cfg, algorithm)
        for problem in chain(about_critic(cfg), about_critics_rate(cfg)):
            raise ConfigError(problem)
    if missing := [name for name in sorted(algorithm.requires) if not getattr(cfg, name)]:
        flags = " ".join(own_fields()[name].flag for name in missing)
        raise ConfigError(f"--advantage-estimator {cfg.advantage_estimator} needs {flags}; add it")
    name, least = cfg.advantage_estimator, algorithm.needs.min_group
    if cfg.reward_level not in algorithm.reward_levels:
        known = ", ".join(sorted(algorithm.reward_levels))
        raise ConfigError(
            f"--reward-level {cfg.reward_level}: --advantage-estimator {name} does not know of "
            f"{cfg.reward_level}s (its reward_levels: {known}); give one of these"
        )
    if cfg.n_samples_per_prompt < least:
        raise ConfigError(
            f"--n-samples-per-prompt {cfg.n_samples_per_prompt} with --advantage-estimator {name}: "
            f"it compares the episodes of a group, and rewards teach nothing in one of fewer than "
            f"{least}; raise --n-samples-per-prompt{algorithm.needs.min_group_advice}"
        )
    if cfg.min_group_size is not None and cfg.min_group_size < least:
        raise ConfigError(
            f"--min-group-size {cfg.min_group_size} with --advantage-estimator {name}: rewards "
            f"teach nothing in a group of fewer than {least}; make it {least} or more"
        )


def _require_whole_logits(cfg: RunConfig) -> None:
    """A loss that reads logits is given those of whole sequences, as they are trained."""
    loss = f"{LOSSES.flag} {cfg.custom_loss_function_path}"
    if cfg.loss_type != "custom_loss":
        loss = f"--advantage-estimator {cfg.advantage_estimator}"
    if cfg.context_parallel_size > 1:
        raise ConfigError(
            f"{loss} reads logits, and --context-parallel-size {cfg.context_parallel_size} has "
            "ranks share the tokens of a sequence; make it 1, or write the loss as "
            "fn(micro_batch, logprobs_T, entropy_T), which is given those of all tokens"
        )
    if temperatures(cfg):
        raise ConfigError(
            f"{loss} reads logits and would divide them by one temperature, and parts of --env-mix "
            "have temperatures of their own; give all parts one, or write the loss as "
            "fn(micro_batch, logprobs_T, entropy_T)"
        )
    if cfg.computes_exactly:
        raise ConfigError(
            f"{loss} reads logits, and --true-on-policy-mode computes log-probabilities by sums of "
            "its own, without logits; leave one of the two out, or write the loss as "
            "fn(micro_batch, logprobs_T, entropy_T)"
        )


def _require_critic(cfg: RunConfig, algorithm: Algorithm) -> None:
    """A new critic says 0 of everything until it is trained."""
    begins = range(1, _LATEST_CRITIC + 1)
    if cfg.critic_load is None and not any("critic" in algorithm.trains(n) for n in begins):
        raise ConfigError(
            f"--advantage-estimator {cfg.advantage_estimator} needs the values of a critic, and its"
            f" `trains` names none in the first {_LATEST_CRITIC} iterations: all values would be 0;"
            ' return ("policy", "critic"), or give a critic that is trained (--critic-load)'
        )


#: The iteration by which the training of a critic has begun.
_LATEST_CRITIC = 100
#: Flags by which the algorithm itself is chosen.
_CHOOSE = {"loss_type", "custom_loss_function_path", "advantage_estimator", "algorithm_args"}


def _refuse_unread(cfg: RunConfig, algorithm: Algorithm, said: Mapping[str, str]) -> None:
    """A flag at its default is let be: scripts of slime's spell out many."""
    name = cfg.advantage_estimator
    if cfg.loss_type == "sft_loss" or name not in ESTIMATORS.builtin:
        return
    others = ObjectiveFlags.__annotations__.keys() - algorithm.reads - _CHOOSE
    unread = [
        spelled
        for field, spelled in said.items()
        if field in others
        and is_read(cfg, field)
        and getattr(cfg, field) != own_fields()[field].default
    ]
    if unread:
        raise ConfigError(
            f"{', '.join(unread)}: --advantage-estimator {name} does not read this; leave it out "
            "(docs/objectives.md has what each estimator reads)"
        )


def _declare(cls: type[Algorithm]) -> None:
    """Make the metrics known that its loss reports, here and where a run is recorded."""
    for metric in cls.metrics:
        known = REGISTRY.find(metric.name)
        if known == metric:
            continue
        if known is not None or metric.reduce is None or not metric.name.startswith("train/"):
            raise ConfigError(
                f"{cls.__name__}.metrics: {metric.name} wants a name of its own that begins with "
                "train/, and a reduction: sum, mean or max"
            )
        REGISTRY.declare(metric)


def _args(cls: type[Algorithm], cfg: RunConfig) -> msgspec.Struct:
    given, known = cfg.algorithm_args, [field.name for field in msgspec.structs.fields(cls.Args)]
    for name in given:
        if name not in known:
            raise ConfigError(
                f"--algorithm-args: {cls.__name__} takes no {name!r}{hint(name, known)}"
            )
    try:
        return msgspec.convert(given, cls.Args)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--algorithm-args for {cls.__name__}: {error}") from error
