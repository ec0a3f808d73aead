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

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.answers import Asked
from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.entries import (
    SHARED_KEYS,
    Entry,
    about_rendering,
    entries_of,
    flags_of,
    raised,
    refuse_twice,
    unknown,
    with_own,
)
from agentrl.config.mixture import FLAG, MixPart, parts_of
from agentrl.config.run import RunConfig
from agentrl.config.settings_file import settings_of
from agentrl.config.unread import about_unread
from agentrl.errors import ConfigError
from agentrl.shipped import BOXED, about_reward

__all__ = [
    "ALONE",
    "EvalSet",
    "asks_for_stops",
    "engine_context",
    "eval_sets",
    "name_of",
    "named_sets",
]

_DATA, _FILE = "--eval-prompt-data", "--eval-config"
#: What slime calls a set of which a path alone is given.
ALONE = "aime"

#: The flags that keys stand for, by key.
_FLAGS = {
    **{key: f"eval_{key}" for key in ("temperature", "top_p", "top_k", "min_p")},
    **{f"max_{key}_len": f"eval_max_{key}_len" for key in ("response", "context", "prompt")},
    **{f"{key}_key": f"eval_{key}_key" for key in ("input", "label", "tool", "reward")},
    **{key: key for key in ("n_samples_per_eval_prompt", "rm_url")},
    **SHARED_KEYS,
}
#: Keys of slime's that are answered as these flags of its are.
_ANSWERED = {
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
    """A set, and the flags that hold for it. `path`: rows; None: those that its Env brings, of the
    name `brought`. `metadata`: what each row's metadata says, whatever the row says itself. `part`:
    the part of a mixture that names it."""

    name: str
    config: RunConfig
    path: str | None = None
    metadata: dict[str, Any] = {}
    brought: str = ""
    part: str = ""

    @property
    def env(self) -> str:
        """The Env that plays it."""
        return self.config.env or ROW_ENVS[0]


def eval_sets(config: RunConfig) -> dict[str, EvalSet]:
    """The sets that the run plays: those that are named, but where a function plays them. Raises
    ConfigError as `named_sets`."""
    return {} if config.eval_function_path is not None else named_sets(config)


def named_sets(config: RunConfig) -> dict[str, EvalSet]:
    """The sets of `--eval-config`, of `--eval-prompt-data`, or of the parts of a mixture that name
    some, by name. A function of --rollout-function-path plays none of them. Raises ConfigError for
    a file that cannot be read, words that are no pairs, names that are given twice, and what no set
    can be told."""
    if config.rollout_function_path is not None:
        alone = msgspec.structs.replace(config, rollout_function_path=None)
        config = with_own(alone, {"env": ROW_ENVS[0]})
    if config.eval_config is not None:
        return _of_file(config, Path(config.eval_config))
    if not config.eval_prompt_data:
        return _of_parts(parts_of(config))
    words = config.eval_prompt_data
    if len(words) == 1:
        words = [ALONE, *words]
    if len(words) % 2:
        raise ConfigError(
            f"{_DATA} has {len(words)} words ({' '.join(words)}); it wants pairs: NAME PATH"
        )
    refuse_twice(_DATA, names := words[::2])
    return {n: EvalSet(n, config, path) for n, path in zip(names, words[1::2], strict=True)}


def engine_context(config: RunConfig, sets: Mapping[str, EvalSet]) -> int | None:
    """Tokens of the longest context that engines are to hold, for training, for each part of a
    mixture and for each set; None: the model's own."""
    ways = [config, *(part.config for part in parts_of(config)), *(s.config for s in sets.values())]
    known = [way.engine_context for way in ways if way.engine_context is not None]
    return max(known) if len(known) == len(ways) else None


def asks_for_stops(config: RunConfig, sets: Iterable[EvalSet]) -> bool:
    """Whether some turns end at strings, which engines look for with the tokenizer."""
    ways = [config, *(part.config for part in parts_of(config)), *(one.config for one in sets)]
    return any(way.rollout_stop for way in ways)


def name_of(part: str, name: str) -> str:
    """What the set `name` of the part `part` is called in the run."""
    return f"{part}-{name}"


def _of_file(config: RunConfig, path: Path) -> dict[str, EvalSet]:
    whole = settings_of(path, _FILE)
    said = whole.get("eval", whole)
    where = f"{_FILE} {path}"
    return _of_entries(config, entries_of(said, "datasets", where), where)


def _of_parts(parts: list[MixPart]) -> dict[str, EvalSet]:
    sets: dict[str, EvalSet] = {}
    for part in parts:
        if part.eval:
            where = f"{part.whose}: eval"
            entries = entries_of({"datasets": part.eval}, "datasets", where)
            for name, one in _of_entries(part.config, entries, where).items():
                full = name_of(part.name, name)
                refuse_twice(FLAG, [*sets, full])
                sets[full] = msgspec.structs.replace(one, name=full, part=part.name)
    return sets


def _of_entries(config: RunConfig, entries: list[Entry], where: str) -> dict[str, EvalSet]:
    problems: list[str] = []
    sets: dict[str, EvalSet] = {}
    for entry in entries:
        name = entry.told["name"]
        try:
            sets[name] = _set(config, entry, f"{where}: {name}")
        except ConfigError as error:
            problems += str(error).splitlines()
    raised(problems)
    return sets


def _set(config: RunConfig, entry: Entry, whose: str) -> EvalSet:
    """The set of one entry. Raises ConfigError with a line for each key that cannot be, and for
    those of its own that nothing reads."""
    told = entry.told
    problems = list(_refused(told, whose))
    own = with_own(config, flags_of(told, _FLAGS, whose, problems))
    metadata = told.get("metadata_overrides", {})
    if not isinstance(metadata, dict):
        problems.append(f"{whose}: metadata_overrides is {metadata!r:.80}, and must be a table")
        metadata = {}
    if "rm_type" in told:
        metadata = {"rm_type": told["rm_type"], **metadata}
    path = told.get("path")
    if path is not None and not isinstance(path, str):
        problems.append(f"{whose}: path is {path!r:.80}, and must be a file of rows")
    if metadata and path is None:
        problems.append(
            f"{whose}: rm_type and metadata_overrides are for rows, and it has no `path`"
        )
    elif "rm_type" in told and own.env not in ROW_ENVS:
        problems.append(
            f"{whose}: rm_type is a reward of --env {' or '.join(ROW_ENVS)}, and {own.env} plays "
            "this set; give it one of those as `env`"
        )
    elif own.env in ROW_ENVS and "reward" not in own.env_args and metadata.get("rm_type"):
        # A function of the user's may know kinds of its own by that name.
        wrong = about_reward(str(metadata["rm_type"]))
        problems += [f"{whose}: rm_type: {wrong}"] if wrong else []
    problems += about_rendering(own, told, whose)
    problems += [f"{whose}: {line}" for line in _unread(own, entry)]
    raised(sorted(problems))
    own = _rewarded(own, str(metadata.get("rm_type") or ""), has_key="reward_key" in told)
    return EvalSet(told["name"], own, path, metadata, told["name"])


def _unread(own: RunConfig, entry: Entry) -> list[str]:
    """A line for each reason why keys of the set's own are read by nothing. `own`: its flags."""
    path = entry.told.get("path")
    # Its rows are all that it has, and any of them may ask for a reward that is a dict.
    args = own.env_args | {"rm_type": "of its rows"} if own.env in ROW_ENVS else own.env_args
    alone = msgspec.structs.replace(
        own,
        env_mix={},
        prompt_data=None,
        eval_config=None,
        use_opd=False,
        loss_type="policy_loss",  # a run that imitates plays no set, which is said of the file
        eval_prompt_data=[] if path is None else [entry.told["name"], str(path)],
        env_args=args,
    )
    said = {_FLAGS[key]: key for key in _FLAGS if key in entry.own and key in entry.told}
    return about_unread(alone, said)


def _rewarded(own: RunConfig, kind: str, *, has_key: bool) -> RunConfig:
    """Of rows that each ask for the reward `kind`: that of the run is no matter of theirs, nor is
    the key that it names of another reward. `has_key`: the set names one itself."""
    args = dict(own.env_args)
    if not kind or own.env not in ROW_ENVS or own.env == GENERATE or "reward" in args:
        return own
    of_run = str(args.pop("rm_type", ""))
    if of_run.removeprefix(BOXED) != kind.strip().removeprefix(BOXED):
        lost = {"reward_key"} if has_key else {"reward_key", "eval_reward_key"}
        args = {name: value for name, value in args.items() if name not in lost}
    return msgspec.structs.replace(own, env_args=args)


def _refused(told: dict[str, Any], whose: str) -> Iterator[str]:
    """A line for each key that is none, and for each that slime has and that cannot be here."""
    yield from unknown(told, _KNOWN, whose)
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
