"""What `--save-debug-rollout-data`, `--save-debug-train-data` and `--load-debug-rollout-data` name,
before anything starts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from agentrl.config.fields import value_in
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.numbered import (
    RANK,
    ROLLOUT_ID,
    about_ranked,
    about_template,
    is_numbered,
    numbered,
)
from agentrl.paths import kind_of
from agentrl.rollout_file import read_rollouts

__all__ = [
    "about_rollouts",
    "loaded_files",
    "notes_on_rollouts",
    "sizes_of_engines",
    "with_one_half",
]

_LOAD, _SAVE = "--load-debug-rollout-data", "--save-debug-rollout-data"
_TRAINED = "--save-debug-train-data"
_OF_LEARNER = ("actor_num_nodes", "actor_num_gpus_per_node")
_OF_ENGINES = ("rollout_num_gpus", "sglang_config", "rollout_external_engine_addrs")


def loaded_files(config: RunConfig) -> list[Path]:
    """The file of each iteration that is trained: --num-rollout of them, or as many as there are
    from the first on; of a path that names one file, one iteration unless more are asked for.
    Raises DataError where one is missing."""
    template = str(config.load_debug_rollout_data)
    if not is_numbered(template):
        return [numbered(template, 1)] * (config.num_rollout or 1)
    if config.num_rollout is not None:
        files = [numbered(template, number + 1) for number in range(config.num_rollout)]
    else:
        files = []
        for number in count(1):
            if kind_of(path := numbered(template, number)) == "nothing":
                break
            files.append(path)
        files = files or [numbered(template, 1)]
    missing = [path for path in files if kind_of(path) == "nothing"]
    if missing:
        raise DataError(
            f"{_LOAD} {template}: there is no file {missing[0]}"
            + (f", nor {len(missing) - 1} others" if missing[1:] else "")
            + "; iterations are counted from 1"
            + (f", and --num-rollout asks for {config.num_rollout}" if config.num_rollout else "")
        )
    return files


def about_rollouts(config: RunConfig) -> Iterator[str]:
    """What cannot be saved or loaded, and what does not go together."""
    save, load = config.save_debug_rollout_data, config.load_debug_rollout_data
    trained = config.save_debug_train_data
    named = {_SAVE: save, _LOAD: load, _TRAINED: trained}
    wrong = {
        flag: (about_ranked if flag == _TRAINED else about_template)(place)
        for flag, place in named.items()
        if place is not None
    }
    if any(wrong.values()):
        yield from (f"{flag} {named[flag]}: {why}" for flag, why in wrong.items() if why)
        return
    if save is not None and not is_numbered(save) and config.num_rollout != 1:
        yield (
            f"{_SAVE} {save}: each iteration would replace the file of the one before; write "
            f"{ROLLOUT_ID} where its number belongs, or give --num-rollout 1"
        )
    if trained is not None:
        yield from _about_trained(config, trained)
    if config.plays_only and config.loads_rollouts:
        yield (
            f"--debug-rollout-only plays and trains nothing, {_LOAD} trains and plays nothing; "
            "give one of the two"
        )
    if config.colocate and (config.plays_only or config.loads_rollouts):  # not by `with_one_half`
        flag = "--debug-rollout-only" if config.plays_only else _LOAD
        yield f"--colocate: under {flag} learner and engines are not both there; leave it out"
    if config.loads_rollouts and load in config.saved_rollouts:
        yield f"{_SAVE} {save} would replace the files that {_LOAD} reads; name another place"
    if config.loads_rollouts:
        yield from _about_files(config)


def _about_trained(config: RunConfig, place: str) -> Iterator[str]:
    """Files of which one would replace another."""
    if config.num_learner_ranks > 1 and RANK not in place:
        yield (
            f"{_TRAINED} {place}: the ranks of the learner would replace each other's file; write "
            f"{RANK} where the number of the rank belongs"
        )
    if not is_numbered(place.replace(RANK, "0")) and config.num_rollout != 1:
        yield (
            f"{_TRAINED} {place}: each iteration would replace the file of the one before; write "
            f"{ROLLOUT_ID} where its number belongs, or give --num-rollout 1"
        )


def _about_files(config: RunConfig) -> Iterator[str]:
    """Headers alone: columns are read when the run takes them in."""
    try:
        for path in dict.fromkeys(loaded_files(config)):
            read_rollouts(path)
    except DataError as error:
        text = str(error)
        yield text if text.startswith(_LOAD) else f"{_LOAD}: {text}"


def with_one_half(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`values` of a run of one half, which shares no devices whatever --colocate says: engines
    alone have as many as the learner would have, unless it is said how many. And a note."""
    alone = values.get("debug_rollout_only")
    if not values.get("colocate") or not (alone or values.get("load_debug_rollout_data")):
        return dict(values), []
    if not alone:
        note = f"--colocate: not needed: {_LOAD} starts no engines to share devices with"
        return {**values, "colocate": False}, [note]
    nodes, per_node = (value_in(values, name) for name in _OF_LEARNER)
    more = {_OF_ENGINES[0]: nodes * per_node} if sizes_of_engines(values) else {}
    whose = f"the learner's devices ({nodes * per_node})" if more else "devices as the run says"
    note = f"--colocate: not needed: --debug-rollout-only trains nothing, and engines have {whose}"
    return {**values, "colocate": False, **more}, [note]


def sizes_of_engines(values: Mapping[str, Any]) -> Sequence[str]:
    """The flags of the learner from which engines alone take their number, if they do."""
    shares = values.get("colocate") and values.get("debug_rollout_only")
    return () if not shares or any(values.get(name) for name in _OF_ENGINES) else _OF_LEARNER


def notes_on_rollouts(config: RunConfig) -> Iterator[str]:
    """What a run of one half leaves out."""
    if config.plays_only:
        yield (
            "--debug-rollout-only: nothing is trained, no checkpoint and no model is written, and "
            "engines play with the weights of --hf-checkpoint throughout"
        )
    if config.loads_rollouts and config.eval_interval is not None:
        yield f"{_LOAD} starts no engines: the evaluations of --eval-interval are left out"
