"""What whoever comes from slime is told at start: where a flag or a default means something else.

`answers.toml` says it all. A row that `differs` is told by a remark, which knows when that is in
effect; else where its flag is given, in one line with others of the same `cause`, or in its own
words. One that is `quiet` has a reason for that in the table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from agentrl.config import answers
from agentrl.config.answers import Asked, Remark
from agentrl.config.conditions import CONDITIONS, GENERATE, ROW_ENVS
from agentrl.config.fields import own_fields
from agentrl.config.mixture import ways_of
from agentrl.config.passthrough import FAMILIES, spelled
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read

__all__ = ["WHERE", "on_differences", "told_by_remarks"]

#: Fields that a script of slime's is given when it is moved here.
_ADDED = {"device", "ray_address", "run_dir", "run_id", "chat_format", "chat_template"}
#: How many of slime's flags, with one of these among them, which its scripts have to give, are
#: slime's: whoever comes from elsewhere writes the names of many, for they are agentrl's as well.
_MANY, _MARKS = 8, {"--actor-num-nodes", "--apply-chat-template"}
#: Where a difference is in effect, beside the conditions of flags (`conditions.py`).
WHERE: dict[str, Callable[[RunConfig], bool]] = {
    "played_ahead": lambda config: (
        config.mode == "policy" and not config.loads_rollouts and CONDITIONS["ahead"].holds(config)
    ),
    "mixed_scores": lambda config: (
        config.eval_interval is not None
        and not config.pins_evaluations
        and not config.evaluates_apart
    ),
    "moving_rate": lambda config: (
        config.lr_decay_style != "constant"
        or config.lr_warmup_iters > 0
        or config.lr_warmup_fraction is not None
    ),
    "imitated": lambda config: config.mode == "supervised",
    "epochs": lambda config: config.num_rollout is None,
    "experts": lambda config: config.megatron.get("num_experts") is not None,
    "other_kl": lambda config: config.kl_coef != 0 and config.kl_loss_type != "k1",
    # One answer is one turn, and slime's functions give it to each request, as here.
    "led_turns": lambda config: any(
        way.env not in (None, ROW_ENVS[0], GENERATE) for way in ways_of(config)
    ),
    "unread_prompts": lambda config: (
        config.prompt_data is not None and (config.env not in ROW_ENVS or config.env == GENERATE)
    ),
}


def on_differences(
    asked: Iterable[Asked], config: RunConfig, said: Mapping[str, str], written: Iterable[str]
) -> Iterator[str]:
    """For a command line that is slime's: a line for each difference that is in effect. `said`: the
    fields that somebody set; `written`: those that the command line gives."""
    words = {one.name: " ".join(one.words) for one in asked}
    if not _is_slimes(words.keys(), written):
        return
    yield "this command line is slime's: docs/from-slime.md tells where a meaning differs here"
    given = [*words, *(f"--{name}".replace("_", "-") for name in said if name not in FAMILIES)]
    for family in FAMILIES:
        values = getattr(config, family)
        names = (f"--{name}".replace("_", "-") for name in values if values[name] is not False)
        given += [spelled(family, name) for name in names]
    for remark in answers.remarks():
        if _holds(remark, config, given):
            yield remark.told(config)
    yield from _by_rows(config, dict.fromkeys(given), words)


def told_by_remarks() -> set[str]:
    """The flags whose difference a remark tells."""
    return {flag for remark in answers.remarks() for flag in (remark.flag, *remark.tells)}


def _holds(remark: Remark, config: RunConfig, given: Iterable[str]) -> bool:
    is_meant = remark.when == "always" or (remark.when == "said") == (remark.flag in given)
    if not is_meant or remark.lacks in given:
        return False
    if remark.field in own_fields() and not is_read(config, remark.field):
        return False
    if remark.needs in WHERE:
        return WHERE[remark.needs](config)
    return not remark.needs or CONDITIONS[remark.needs].holds(config)


def _by_rows(config: RunConfig, given: Iterable[str], words: Mapping[str, str]) -> Iterator[str]:
    """Of rows that no remark tells: those of one cause in one line."""
    told, caused = told_by_remarks(), dict[str, list[str]]()
    own: list[str] = []
    for flag in given:
        row = answers.rows().get(flag)
        if row is None or not row.differs or row.quiet or flag in told:
            continue
        field, value = flag.removeprefix("--").replace("-", "_"), words.get(flag)
        if field in own_fields():
            value = getattr(config, field)
            if not is_read(config, field) or value is False:
                continue
        if value in row.same:
            continue
        if row.cause:
            caused.setdefault(row.cause, []).append(flag)
        else:
            own.append(f"{flag}: {row.differs}")
    yield from (f"{', '.join(flags)}: {answers.causes()[name]}" for name, flags in caused.items())
    yield from own


def _is_slimes(names: Iterable[str], written: Iterable[str]) -> bool:
    """Whether a command line gives a flag that only slime has, or many of its with a mark of its
    scripts, and none that agentrl alone has."""
    slime, known = answers.rows("slime"), answers.rows()
    own = {field.flag for n, field in own_fields().items() if n in written and n not in _ADDED}
    if any(name in slime for name in names):
        return True
    num = sum(flag in slime for flag in own)
    return num >= _MANY and not own.isdisjoint(_MARKS) and own <= known.keys()
