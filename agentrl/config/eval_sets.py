"""Evaluation sets: which there are, and how each of them is played.

`--eval-prompt-data` names sets and files in turn, NAME PATH [NAME PATH ...]; given again, it adds
to them. A path alone, as slime takes it, is a set of the name that slime gives it. All of them are
played as the flags say.

`--eval-config FILE`, YAML or TOML in slime's form, says more of each:

    eval:
      defaults: {max_response_len: 16384}
      datasets:
        - {name: aime, path: aime.jsonl, rm_type: deepscaler, n_samples_per_eval_prompt: 16}

A key stands for a flag (`temperature` for `--eval-temperature`), and is taken as that flag is. So a
set has the flags of the run with its own in their place: a `RunConfig`, which every rule about the
flags of a run can be asked of. A set without a path is one that its Env brings, of that name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.answers import Asked
from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.fields import convert, own_fields
from agentrl.config.files import settings_of
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = ["ALONE", "EvalSet", "engine_context", "eval_sets"]

_DATA, _FILE = "--eval-prompt-data", "--eval-config"
#: What slime calls a set of which a path alone is given.
ALONE = "aime"

#: The flags that keys stand for, by key.
_FLAGS = {
    **{key: f"eval_{key}" for key in ("temperature", "top_p", "top_k")},
    **{f"max_{key}_len": f"eval_max_{key}_len" for key in ("response", "context", "prompt")},
    **{f"{key}_key": f"eval_{key}_key" for key in ("input", "label", "tool", "reward")},
    "n_samples_per_eval_prompt": "n_samples_per_eval_prompt",
    "stop_token_ids": "rollout_stop_token_ids",
    "metadata_key": "metadata_key",
    "max_turns": "max_turns",
    "max_tool_calls": "max_tool_calls",
    "env": "env",
    "env_args": "env_args",
    "custom_rm_path": "custom_rm_path",
    "custom_generate_function_path": "custom_generate_function_path",
    "apply_chat_template": "apply_chat_template",
}
#: Keys of slime's that are answered as these flags of its are.
_ANSWERED = {
    "stop": "--rollout-stop",
    "min_new_tokens": "--eval-min-new-tokens",
    "skip_special_tokens": "--rollout-skip-special-tokens",
    "multimodal_keys": "--multimodal-keys",
}
#: Keys of slime's that hold for the whole run here, with their flags.
_OF_RUN = {"apply_chat_template_kwargs": "--apply-chat-template-kwargs"}
#: Keys that are for this set's rows, and for no flag.
_OF_ROWS = ("rm_type", "metadata_overrides")
_KNOWN = ("name", "path", *_FLAGS, *_ANSWERED, *_OF_RUN, *_OF_ROWS, "repetition_penalty")


class EvalSet(msgspec.Struct, frozen=True):
    """A set, and the flags that hold for it. `path`: rows; None: those that its Env brings.
    `metadata`: what each row's metadata says, whatever the row says itself."""

    name: str
    config: RunConfig
    path: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def env(self) -> str:
        """The Env that plays it."""
        return self.config.env or ROW_ENVS[0]


def eval_sets(config: RunConfig) -> dict[str, EvalSet]:
    """The sets of `--eval-config`, or of `--eval-prompt-data`, by name. Raises ConfigError for a
    file that cannot be read, words that are no pairs, names that are given twice, and what no set
    can be told."""
    if config.eval_config is not None:
        return _of_file(config, Path(config.eval_config))
    words = config.eval_prompt_data
    if len(words) == 1:
        words = [ALONE, *words]
    if len(words) % 2:
        raise ConfigError(
            f"{_DATA} has {len(words)} words ({' '.join(words)}); it wants pairs: NAME PATH"
        )
    _refuse_twice(_DATA, names := words[::2])
    return {n: EvalSet(n, config, path) for n, path in zip(names, words[1::2], strict=True)}


def engine_context(config: RunConfig, sets: Mapping[str, EvalSet]) -> int | None:
    """Tokens of the longest context that engines are to hold, for training and for each set; None:
    the model's own."""
    contexts = [config.engine_context, *(one.config.engine_context for one in sets.values())]
    known = [context for context in contexts if context is not None]
    return max(known) if len(known) == len(contexts) else None


def _of_file(config: RunConfig, path: Path) -> dict[str, EvalSet]:
    whole = settings_of(path, _FILE)
    said = whole.get("eval", whole)
    where = f"{_FILE} {path}"
    if not isinstance(said, dict) or not isinstance(defaults := said.get("defaults") or {}, dict):
        raise ConfigError(f"{where}: `eval` must hold `datasets`, and `defaults` by name if any")
    if unknown := sorted(map(str, said.keys() - {"defaults", "datasets"})):
        raise ConfigError(
            f"{where}: unknown {', '.join(unknown)} beside `defaults` and `datasets`; what holds "
            "for one set belongs into its entry"
        )
    entries = list(_entries(said.get("datasets"), where))
    _refuse_twice(where, [entry["name"] for entry in entries])
    problems: list[str] = []
    sets: dict[str, EvalSet] = {}
    for entry in entries:
        told = {key: value for key, value in (defaults | entry).items() if value is not None}
        whose = f"{where}: {entry['name']}"
        try:
            sets[entry["name"]] = _set(config, told, whose)
        except ConfigError as error:
            problems += str(error).splitlines()
    if problems:
        raise ConfigError("\n".join(problems))
    return sets


def _entries(datasets: Any, where: str) -> Iterator[dict[str, Any]]:
    """What is said of each set, with its name: of a list of them, or a table by name."""
    if isinstance(datasets, dict):
        datasets = [{"name": name, **(told or {})} for name, told in datasets.items()]
    if not isinstance(datasets, list) or not datasets:
        raise ConfigError(f"{where} names no sets: `datasets` must be a list of them, each a table")
    for place, told in enumerate(datasets, start=1):
        if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not told["name"]:
            raise ConfigError(
                f"{where}: entry {place} of `datasets` must be a table with a `name`, and is "
                f"{told!r:.80}"
            )
        yield told


def _set(config: RunConfig, told: dict[str, Any], whose: str) -> EvalSet:
    """The set of one entry, `told` with the defaults of the file. Raises ConfigError with a line
    for each key that cannot be."""
    problems = list(_refused(told, whose))
    flags: dict[str, Any] = {}
    for key in _FLAGS.keys() & told.keys():
        field = own_fields()[_FLAGS[key]]
        try:
            flags[field.name] = convert(field, told[key])
        except ConfigError as error:
            problems.append(f"{whose}: {key}: {error}")
    metadata = told.get("metadata_overrides", {})
    if not isinstance(metadata, dict):
        problems.append(f"{whose}: metadata_overrides is {metadata!r:.80}, and must be a table")
        metadata = {}
    if "rm_type" in told:
        metadata = {"rm_type": told["rm_type"], **metadata}
    path = told.get("path")
    if path is not None and not isinstance(path, str):
        problems.append(f"{whose}: path is {path!r:.80}, and must be a file of rows")
    env, args = _env(config, flags)
    if metadata and path is None:
        problems.append(
            f"{whose}: rm_type and metadata_overrides are for rows, and it has no `path`"
        )
    elif "rm_type" in told and env not in ROW_ENVS:
        problems.append(
            f"{whose}: rm_type is a reward of --env {' or '.join(ROW_ENVS)}, and {env} plays this "
            "set; give it one of those as `env`"
        )
    if problems:
        raise ConfigError("\n".join(sorted(problems)))
    changes = {**flags, "env": env, "env_args": args}
    return EvalSet(told["name"], msgspec.structs.replace(config, **changes), path, metadata)


def _refused(told: dict[str, Any], whose: str) -> Iterator[str]:
    """A line for each key that is none, and for each that slime has and that cannot be here."""
    for key in sorted(map(str, told.keys() - set(_KNOWN))):
        yield f"{whose}: unknown key {key}{nearest(key, _KNOWN)}"
    for key in sorted(_OF_RUN.keys() & told.keys()):
        yield f"{whose}: {key} holds for the whole run: give {_OF_RUN[key]}"
    for key in sorted(_ANSWERED.keys() & told.keys()):
        value = told[key]
        words = tuple(map(str, value)) if isinstance(value, list) else (str(value).lower(),)
        flag = _ANSWERED[key]
        if value not in ([], False) or flag == "--eval-min-new-tokens":
            yield from (
                f"{whose}: {line.replace(flag, key, 1)}"
                for line in answers.refusals([Asked(flag, flag, words)])
            )
    if told.get("repetition_penalty", 1) != 1:
        yield f"{whose}: repetition_penalty is not there; only 1 is, which punishes nothing"


def _env(config: RunConfig, flags: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The Env of a set that is told `flags`, and its arguments: those of the run where it is the
    run's Env, or both are for rows; then what the set says."""
    of_run = config.env or ROW_ENVS[0]
    usual = GENERATE if flags.get("custom_generate_function_path") else of_run
    env = flags.get("env") or usual
    is_alike = env == of_run or {env, of_run} <= set(ROW_ENVS)
    args = dict(config.env_args) if is_alike else {}
    if env != GENERATE:
        args.pop("function", None)
    own = own_fields()
    args |= {
        argument: value
        for name, value in flags.items()
        if (argument := own[name].fact.env_arg) is not None and env in ROW_ENVS
    }
    return env, args | flags.get("env_args", {})


def _refuse_twice(where: str, names: list[str]) -> None:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} names {', '.join(repeated)} twice; names must differ")
