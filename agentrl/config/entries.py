"""Entries of a file, each of which is played by the flags of the run with its own in their place.

    defaults: {max_turns: 2}        what all entries say, but for those that say it themselves
    NOUN:                           a list of tables with a `name`, or a table of them by name
      - {name: maths, rm_type: math}

A key stands for a flag and is taken as that flag is, so the result is a `RunConfig`, which every
rule about the flags of a run can be asked of.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from agentrl.config.conditions import CONDITIONS, GENERATE, ROW_ENVS
from agentrl.config.fields import convert, own_fields
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = [
    "SHARED_KEYS",
    "Entry",
    "about_rendering",
    "entries_of",
    "flags_of",
    "notes_on_rendering",
    "raised",
    "refuse_twice",
    "unknown",
    "with_own",
]

Told = dict[str, Any]


class Entry(NamedTuple):
    """What is said of one entry, with the defaults, and the keys that it says itself."""

    told: Told
    own: frozenset[str]


#: Keys that mean the same in every such file, with the flags that they stand for.
SHARED_KEYS = {
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "metadata_key": "metadata_key",
    "max_turns": "max_turns",
    "max_tool_calls": "max_tool_calls",
    "max_episode_tokens": "max_episode_tokens",
    "env": "env",
    "env_args": "env_args",
    "custom_rm_path": "custom_rm_path",
    "custom_generate_function_path": "custom_generate_function_path",
    "apply_chat_template": "apply_chat_template",
}


def entries_of(said: Any, noun: str, where: str) -> list[Entry]:
    """What is said of each entry under `noun`, with the defaults. Raises ConfigError for a shape
    that is none, and for names that are given twice."""
    if not isinstance(said, dict) or not isinstance(defaults := said.get("defaults") or {}, dict):
        raise ConfigError(f"{where} must hold `{noun}`, and `defaults` by name if any")
    if others := sorted(map(str, said.keys() - {"defaults", noun})):
        raise ConfigError(
            f"{where}: unknown {', '.join(others)} beside `defaults` and `{noun}`; what holds for "
            "one of these belongs into its entry"
        )
    entries = list(_named(said.get(noun), noun, where))
    refuse_twice(where, [entry["name"] for entry in entries])
    whole = [(defaults | entry, frozenset(entry)) for entry in entries]
    return [
        Entry({key: value for key, value in told.items() if value is not None}, own)
        for told, own in whole
    ]


def flags_of(told: Told, keys: Mapping[str, str], whose: str, problems: list[str]) -> Told:
    """The values of the fields that `keys` stand for; `problems` gets a line for each that cannot
    be."""
    flags: Told = {}
    for key in keys.keys() & told.keys():
        field = own_fields()[keys[key]]
        try:
            flags[field.name] = convert(field, told[key])
        except ConfigError as error:
            problems.append(f"{whose}: {key}: {error}")
    return flags


def with_own(config: RunConfig, flags: Told) -> RunConfig:
    """`config` with `flags` in their place, the Env among them. Its arguments are those of the run
    where it is the run's Env, or both are for rows; then what the entry says."""
    of_run = config.env or ROW_ENVS[0]
    usual = GENERATE if flags.get("custom_generate_function_path") else of_run
    env = flags.get("env") or usual
    is_alike = env == of_run or {env, of_run} <= set(ROW_ENVS)
    args = dict(config.env_args) if is_alike else {}
    if env != GENERATE:
        for name in ("function", "rollout_function"):
            args.pop(name, None)
    own = own_fields()
    args |= {
        argument: value
        for name, value in flags.items()
        if (argument := own[name].fact.env_arg) is not None and env in ROW_ENVS
    }
    changes = {**flags, "env": env, "env_args": args | flags.get("env_args", {})}
    return msgspec.structs.replace(config, **changes)


def about_rendering(own: RunConfig, told: Told, whose: str) -> Iterator[str]:
    """A line where the entry asks for prompts as their rows have them, and `own` renders them."""
    if "apply_chat_template" in told and not own.apply_chat_template and own.env != GENERATE:
        yield (
            f"{whose}: apply_chat_template: false cannot be: env {own.env} renders each prompt as "
            "a chat; leave the key out, or give custom_generate_function_path, whose function is "
            "given a prompt as its row has it"
        )


def notes_on_rendering(config: RunConfig, ways: Iterable[tuple[str, RunConfig]]) -> Iterator[str]:
    """A line for each of `ways` (what it is called, its flags) whose entry asks for what is so in
    any case. What the run's own flag says is noted of the run."""
    for called, way in ways:
        if way.apply_chat_template and not config.apply_chat_template and way.env != GENERATE:
            yield f"{called}: apply_chat_template: {CONDITIONS['generate_function'].otherwise}"


def unknown(told: Told, known: Collection[str], whose: str) -> Iterator[str]:
    """A line for each key that is none."""
    for key in sorted(map(str, told.keys() - set(known))):
        yield f"{whose}: unknown key {key}{nearest(key, known)}"


def raised(problems: Iterable[str]) -> None:
    """Raise ConfigError with all of `problems`, if there are any."""
    if lines := list(problems):
        raise ConfigError("\n".join(lines))


def refuse_twice(where: str, names: list[str]) -> None:
    """Raise ConfigError for names that are not different."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} names {', '.join(repeated)} twice; names must differ")


def _named(entries: Any, noun: str, where: str) -> Iterator[Told]:
    """What is said of each entry, with its name: of a list of them, or a table by name."""
    if isinstance(entries, dict):
        entries = [{"name": name, **(told or {})} for name, told in entries.items()]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}: `{noun}` must be a list, each a table with a `name`")
    for place, told in enumerate(entries, start=1):
        if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not told["name"]:
            raise ConfigError(
                f"{where}: entry {place} of `{noun}` must be a table with a `name`, and is "
                f"{told!r:.80}"
            )
        yield told
