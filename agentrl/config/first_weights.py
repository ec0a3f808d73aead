"""Which weights a new run begins with.

    --load X --save X, and X has checkpoints of a run that is found    it goes on (`saved_by.py`)
    --load       checkpoints (weights and optimizer), a Hugging Face model (weights), or a
                 checkpoint in Megatron's own format (weights, and the optimizer where it is there)
    --ref-load   the same, where --load is not given or holds nothing of the kind
    --hf-checkpoint   else

`--ref-load` is the reference as well, where the loss has one; without it that is --hf-checkpoint.
A critic begins with `--critic-load`, else as the policy does.
What is taken is said, and what is not there. An evaluation begins with what it is told, and with
nothing else.

A folder is passed over where it holds no checkpoint: none has a manifest, as in slime none is where
Megatron's tracker file lacks. One whose checkpoints were whole and are all damaged is refused, as
it ends slime's run: weights that somebody named are not exchanged for others because a disk lost a
byte. Where an older one of the same folder is whole, that is taken, and said. Nor is anything
passed over in the folder that a run saves to: what lies there is its own past, and to begin anew
beside it is for a person to say.
"""

import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Literal

from agentrl.config.conditions import CONDITIONS, has_shipped_estimator
from agentrl.config.fields import places_of_weights
from agentrl.config.places import CHECKPOINT, MANIFEST, entries, newest_kept
from agentrl.config.run import RunConfig
from agentrl.config.saved_by import loads_where_it_saves, way_on
from agentrl.config.torch_dist import folder_of
from agentrl.model_dir import CONFIG
from agentrl.paths import kind_of

__all__ = [
    "about_reference",
    "about_weights",
    "brings_optimizer",
    "holds_megatron",
    "holds_model",
    "kept_of",
    "megatrons_of",
    "models_of",
    "passengers_of",
    "wants_megatrons_optimizer",
    "with_first_weights",
    "without_load",
]

#: What Megatron writes beside or into its checkpoints.
_MEGATRON = ("latest_checkpointed_iteration.txt", ".metadata", "common.pt")
#: Megatron's flags by which a new run takes the weights and leaves the optimizer.
_WEIGHTS_ALONE = ("no_load_optim", "finetune")
_Content = Literal["a model", "checkpoints", "a checkpoint of Megatron's", "nothing"]


def holds_model(place: str | Path) -> bool:
    """Whether a Hugging Face model lies there."""
    return _content(Path(place)) == "a model"


def holds_megatron(place: str | Path) -> bool:
    """Whether a checkpoint in Megatron's own format lies there."""
    return _content(Path(place)) == "a checkpoint of Megatron's"


def passengers_of(config: RunConfig, model_dir: Path) -> Path:
    """The Hugging Face model whose tensors without a layer here go into every model that is saved:
    that of `--load`, which gave the first weights; `model_dir` where `--load` is none. A run that
    goes on takes them where it took them before."""
    load = config.load
    return Path(load) if load is not None and holds_model(load) else model_dir


def brings_optimizer(config: RunConfig) -> bool:
    """Whether `--load` names checkpoints of ours, and more than their weights is wanted."""
    if config.load is None or holds_model(config.load) or holds_megatron(config.load):
        return False
    return not any(config.megatron.get(name) for name in _WEIGHTS_ALONE)


def wants_megatrons_optimizer(config: RunConfig) -> bool:
    """Whether `--load` names a checkpoint of Megatron's of which more than the weights is wanted:
    not where it stands in for the reference, nor of weights that were converted (a release)."""
    if config.load is None or config.load == config.ref_load or not holds_megatron(config.load):
        return False
    is_release = folder_of(Path(config.load)).name == "release"
    return not is_release and not any(config.megatron.get(name) for name in _WEIGHTS_ALONE)


def models_of(config: RunConfig) -> dict[str, str]:
    """The Hugging Face models whose weights the learner reads beside --hf-checkpoint, by flag."""
    return _read_by_learner(config, "a model")


def megatrons_of(config: RunConfig) -> dict[str, str]:
    """The checkpoints in Megatron's own format that the learner reads, by flag."""
    return _read_by_learner(config, "a checkpoint of Megatron's")


def kept_of(config: RunConfig) -> dict[str, str]:
    """The checkpoints of runs that the learner of a new run reads, by flag."""
    return {} if config.is_continued else _read_by_learner(config, "checkpoints")


def _read_by_learner(config: RunConfig, content: _Content) -> dict[str, str]:
    named = dict(_places(config))
    if config.load == config.ref_load:
        named.pop("--load", None)
    return {f: place for f, place in named.items() if _content(Path(place)) == content}


def _places(config: RunConfig, but: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """What is named of the models that the learner of `config` has, by flag. A run that goes on has
    its critic."""
    but = but | {"critic"} if config.is_continued else but
    for model, field in places_of_weights().items():
        place, needs = getattr(config, field.name), field.fact.needs
        is_there = needs is None or CONDITIONS[needs].holds(config)
        if place and is_there and model not in but:
            yield field.flag, place


def without_load(values: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a run that is continued, which was begun with `before`. A script that loads
    where it saves says how the run was to begin: its own folder is no other `--load`, and a
    `--ref-load` that was not there then is not missed now."""
    if not loads_where_it_saves(values):
        return dict(values)
    dropped = {"load"}
    if "ref_load" not in before and not _may_compare({**before, **values}):
        dropped.add("ref_load")
    return {name: value for name, value in values.items() if name not in dropped}


def with_first_weights(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of a new run, with what it begins with as `load`, and notes on that."""
    if values.get("eval_only"):
        return values, []
    load, ref = values.get("load"), values.get("ref_load")
    kinds = {place: _content(Path(place)) for place in (load, ref) if place is not None}
    for place in kinds:
        is_own = place == load and loads_where_it_saves(values)
        if kinds[place] == "checkpoints" and not is_own and not _has_manifest(Path(place)):
            kinds[place] = "nothing"
    missing = [
        f"{flag} {place}: {_lacking(Path(place))}; it is passed over"
        for flag, place in (("--load", load), ("--ref-load", ref))
        if place is not None and kinds[place] == "nothing"
    ]
    chosen = next(
        (place for place in (load, ref) if kinds.get(place, "nothing") != "nothing"), None
    )
    if chosen is not None:
        flag = "--load" if chosen == load else "--ref-load"
        brings = flag == "--load" and not any(map(values.get("megatron", {}).get, _WEIGHTS_ALONE))
        taken = f"{flag} {chosen}: {_taken(Path(chosen), kinds[chosen], brings)}"
        kept = newest_kept(Path(chosen)) if loads_where_it_saves(values) else None
        if kept is not None and (way := way_on(values, kept)):
            taken += f" ({way})"
    else:
        taken = f"the first weights are those of --hf-checkpoint {values.get('hf_checkpoint')}"
    notes = [*missing, *([taken] if missing or chosen else []), *_on_save(values)]
    if ref and kinds[ref] == "nothing" and not _may_compare(values):
        ref = None
    return {**values, "load": chosen, "ref_load": ref}, notes


def _may_compare(values: Mapping[str, Any]) -> bool:
    """Whether something may be compared with a reference."""
    return CONDITIONS["reference"].holds(RunConfig(**values))


def about_reference(config: RunConfig) -> Iterator[str]:
    """A line where the reference, which something is compared with, cannot be read as such."""
    if config.ref_load is not None and _content(Path(config.ref_load)) == "nothing":
        yield (
            f"--ref-load {config.ref_load}: {_lacking(Path(config.ref_load))}, and the KL compares "
            "with it; name a Hugging Face model, a run or its checkpoints, or leave it out: the "
            "reference then is --hf-checkpoint"
        )


def about_weights(config: RunConfig) -> Iterator[str]:
    """A line for each place of weights that cannot be read as such. Whether an estimator of the
    user's compares with a reference is asked where it is loaded (`check_algorithm`)."""
    if config.mode == "policy" and (config.has_reference or has_shipped_estimator(config)):
        yield from about_reference(config)
    for flag, place in _places(config, but={"policy", "reference"}):
        if _content(Path(place)) == "nothing":
            yield (
                f"{flag} {place}: {_lacking(Path(place))}; name a Hugging Face model, a run, its "
                "checkpoints, or a checkpoint of Megatron's"
            )


def _content(place: Path) -> _Content:
    if not place.is_dir():
        return "nothing"
    if _named(place):
        return "checkpoints"
    if (place / CONFIG).is_file():
        return "a model"
    if any((place / name).exists() for name in _MEGATRON):
        return "a checkpoint of Megatron's"
    return "nothing"


def _named(place: Path) -> list[Path]:
    """What bears a checkpoint's name: `place`, or folders in it."""
    return [p for p in (place, *entries(place)) if CHECKPOINT.fullmatch(p.name) and p.is_dir()]


def _has_manifest(place: Path) -> bool:
    return any((each / MANIFEST).exists() for each in _named(place))


def _lacking(place: Path) -> str:
    kind = kind_of(place)
    if kind == "nothing":
        return f"there is no folder {place}"
    if kind != "a directory":
        return f"it is {kind}"
    if not os.access(place, os.R_OK | os.X_OK):
        return "it may not be read by you"
    if named := _named(place):
        return f"{named[-1].name} has no {MANIFEST}: it is no checkpoint, or a part of one"
    return "it holds no model and no checkpoint" if entries(place) else "it is empty"


def _taken(place: Path, content: _Content, brings: bool) -> str:
    if content == "a model":
        return "the first weights are those of this Hugging Face model"
    if content == "a checkpoint of Megatron's":
        weights = "the first weights are those of this checkpoint of Megatron's"
        if not brings:
            return f"{weights}; the optimizer is new"
        return (
            f"{weights}, and so is the optimizer where it is there in a form that every layout "
            "reads; else it is new"
        )
    kept = newest_kept(place)
    if kept is None:
        return "the first weights and the optimizer are those of its newest checkpoint"
    return (
        f"the first weights and the optimizer are those of {kept.directory.name} of the run "
        f"{kept.run_id}, or of the newest before it that is whole; a new run begins, whose "
        "iterations, tasks and learning rate count from its own start"
    )


def _on_save(values: Mapping[str, Any]) -> Iterator[str]:
    """A folder that other runs save to: nothing in it is ever replaced."""
    kept = newest_kept(Path(values["save"])) if values.get("save") else None
    if kept is not None:
        yield (
            f"--save {values['save']} holds checkpoints of the run {kept.run_id}, which stay as "
            "they are: this run's go into a folder there that is called by its id"
        )
