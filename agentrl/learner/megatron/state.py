"""All that the next step of a rank depends on: to disk and back.

    __RANK_0.distcp, index.json, ...   weights and moments (`shards`)
    progress.json                      completed steps, their schedule, and their layout
    rng_RANK.msgpack                   random generators of a rank

A model beside the policy that the run renews has its weights there too, behind its name; one that
is trained beside it, weights and moments.

In the layout that saved, the next step is bit-equal to the one that would have followed. In another
one the same weights and moments are shared out anew, and each rank keeps the generators that it
was opened with. All ranks come here together, and all of them raise or none (`agreement`). While a
rank writes or reads, the others wait in turns (`beside`): a slow disk ends no collective.
"""

import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch.distributed as dist
from megatron.core import parallel_state

from agentrl import disk
from agentrl.config.torch_dist import read_index
from agentrl.errors import ConfigError, DataError, EnvironmentSetupError
from agentrl.learner import beside, collective_errors
from agentrl.learner.manifest import FileFacts
from agentrl.learner.megatron import parallel, placement, rng, shards
from agentrl.learner.megatron.optimizer import Optimizer
from agentrl.learner.megatron.placement import Shard
from agentrl.models.norm_names import with_our_names

__all__ = ["HostCopy", "in_turns", "load", "load_weights", "save", "together"]

log = logging.getLogger(__name__)

_PROGRESS = "progress.json"
_POLICY = "policy"
_OF_OPTIMIZER = re.compile(r"optimizer\.state\.\w+\.")
#: Models beside the policy that a run may have in its state.
_BESIDE = ("reference", "critic")


class OptimizedModel(Protocol):
    """A model with its optimizer."""

    optimizer: Optimizer

    @property
    def module(self) -> Any: ...


class GroupSizes(msgspec.Struct, frozen=True):
    """Sizes of the learner's groups; with equal ones a rank has the same part in both runs."""

    ranks: int
    tensor: int
    pipeline: int
    context: int
    expert: int = 1
    expert_tensor: int = 1
    stages_of_a_rank: int = 1


class Steps(msgspec.Struct, frozen=True):
    """Optimizer steps taken, and how many of them before the schedule began."""

    completed_steps: int
    schedule_start: int


class TrainingProgress(msgspec.Struct, frozen=True):
    """The policy's steps, and whose schedule it is; None: of the run that loads it, as earlier
    programs did not say. `others`: the steps of models that are trained beside the policy."""

    completed_steps: int
    layout: GroupSizes
    schedule_start: int = 0
    run_id: str | None = None
    others: dict[str, Steps] = {}

    def steps_of(self, name: str) -> Steps:
        """Of the model of that name."""
        if name == _POLICY:
            return Steps(self.completed_steps, self.schedule_start)
        return self.others[name]


def save(
    directory: Path, trained: Mapping[str, OptimizedModel], renewed: Mapping[str, Any] | None = None
) -> dict[str, FileFacts]:
    """Write the state into `directory`, which is there and empty. Collective; durable on return.
    Returns the files that ranks wrote, with what they know of them.
    By name: `trained` are the policy and what is trained beside it, `renewed` models beside the
    policy whose weights the run changes."""
    generators, held = rng.capture(), [*_of_all(trained), *_weights_of(renewed or {})]
    parts = in_turns(lambda: _write(directory, generators, held))
    return _join(directory, parts, _progress_of(trained), _arguments_of(trained))


class HostCopy:
    """This rank's state in the memory of the host: a `StateCopy` of `checkpointing`."""

    def __init__(self, trained: Mapping[str, OptimizedModel], renewed: Mapping[str, Any]) -> None:
        self._generators = rng.capture()
        self._progress = _progress_of(trained)
        self._arguments = _arguments_of(trained)
        self._shards = shards.copied(chain(_of_all(trained), _weights_of(renewed)))

    def write(self, directory: Path) -> Any:
        """See `agentrl.learner.checkpointing.StateCopy`."""
        return _write(directory, self._generators, self._shards)

    def join(self, directory: Path, parts: list[Any]) -> dict[str, FileFacts]:
        """See `agentrl.learner.checkpointing.StateCopy`."""
        return _join(directory, parts, self._progress, self._arguments)


def _write(directory: Path, generators: rng.Generators, held: Iterable[Shard]) -> Any:
    """This rank's files; a `shards.Written` as builtins."""
    rank = dist.get_rank()
    if not directory.is_dir():
        raise EnvironmentSetupError(
            f"rank {rank} sees no {directory}: on several nodes checkpoints need a file system"
            " that all of them share"
        )
    disk.write_file(_rng_file(directory, rank), msgspec.msgpack.encode(generators))
    return msgspec.to_builtins(shards.write(directory, rank, held))


def _arguments_of(trained: Mapping[str, OptimizedModel]) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = trained[_POLICY].module.arguments
    return arguments


def _join(
    directory: Path, parts: list[Any], progress: TrainingProgress, arguments: Mapping[str, Any]
) -> dict[str, FileFacts]:
    """Describe what all ranks wrote. Collective."""
    written = msgspec.convert(parts, list[shards.WrittenShards])

    def describe() -> None:
        if dist.get_rank() == 0:
            indexes = [part.index for part in written]
            shards.write_index(directory, indexes, arguments, lambda key: bool(_weight_of(key)))
            disk.write_file(directory / _PROGRESS, msgspec.json.encode(progress))

    together(describe)
    return {name: facts for part in written for name, facts in part.files.items()}


def load(
    directory: Path,
    trained: Mapping[str, OptimizedModel],
    renewed: Mapping[str, Any] | None = None,
    kept: Container[str] = (),
) -> None:
    """Take the state from `directory`. Collective. Of another run it is weights and moments: the
    schedule begins anew, and models that are `renewed`, or whose names are in `kept`, stay as they
    are. A model that `directory` does not hold also stays as it is.

    Raises ConfigError, with nothing changed, when model or types are not those of the checkpoint.
    After any other error the weights are neither the old nor the new ones.
    """
    run_id = trained[_POLICY].optimizer.run_id
    wanted: list[Shard] = []
    taken: dict[str, OptimizedModel] = {}
    index: shards.Index = {}

    models = [*(one.module for one in trained.values()), *(renewed or {}).values()]
    names = set(chain.from_iterable(together(lambda: sorted(_keys(models)))))

    def look() -> list[str]:
        index.update(with_our_names(read_index(directory), names))
        is_own = is_ours(_progress(directory))
        there = {name for name in trained if name == _POLICY or _holds(index, name)}
        there -= set() if is_own else {name for name in trained if name in kept}
        taken.update({name: one for name, one in trained.items() if name in there})
        wanted.extend(_of_all(taken))
        if is_own:
            again = {n: one for n, one in (renewed or {}).items() if _holds(index, n)}
            wanted.extend(_weights_of(again))
        _require_moments(directory, index, wanted)
        shards.require(directory, index, wanted)
        return sorted({shard.key for shard in wanted})

    def is_ours(progress: TrainingProgress) -> bool:
        return progress.run_id in (None, run_id)

    def take() -> None:
        progress = _progress(directory)
        for name, one in taken.items():
            done = progress.steps_of(name)
            start = done.schedule_start if is_ours(progress) else done.completed_steps
            one.optimizer.resume(done.completed_steps, start)
        _restore_generators(directory, progress.layout)

    known = set(chain.from_iterable(together(look)))
    beside = {key for key in index if key.startswith(tuple(f"{name}." for name in _BESIDE))}
    others = index.keys() - known - beside
    # Of what is frozen here and was not there, the moments are left.
    if unknown := sorted(key for key in others if _weight_of(key) not in known):
        raise ConfigError(
            f"{directory} is of another model: it has {len(unknown)} tensors that the run does not"
            f" know, such as {unknown[0]}"
        )
    in_turns(lambda: shards.read(directory, index, wanted))
    together(take)


def _require_moments(directory: Path, index: shards.Index, wanted: Iterable[Shard]) -> None:
    """Those of all that is trained here: a weight without any was frozen there, as one expert of
    those that are one tensor may have been."""
    keys = {shard.key for shard in wanted} - index.keys()
    frozen = index.keys() - set(map(_weight_of, index))
    without = {weight for key in keys if (weight := _weight_of(key)) in frozen}
    in_part = {
        weight
        for shard in wanted
        if (weight := _weight_of(shard.key)) is not None
        and shard.key in index
        and index[shard.key].shape == shard.whole
        and not shards.holds(index[shard.key], shard)
    }
    lacking = sorted(without | in_part)
    if lacking:
        raise ConfigError(
            f"{directory} has no optimizer state of {len(lacking)} tensors that this run trains,"
            f" such as {lacking[0]}: they were frozen there; --no-load-optim takes the weights"
            " alone"
        )


def _weight_of(key: str) -> str | None:
    """Which weight a tensor of the optimizer is for; None: `key` is a weight."""
    weight, number = _OF_OPTIMIZER.subn("", key, 1)
    return weight if number else None


def load_weights(directory: Path, model: Any, name: str = _POLICY, without: str = "") -> None:
    """Take the weights alone from `directory`: of the model of that name where it is there, else of
    the policy, but for those whose keys begin with `without`. Collective; raises as `load`."""

    index: shards.Index = {}
    wanted: list[Shard] = []

    def look() -> None:
        index.update(with_our_names(read_index(directory), _keys([model])))
        if name != _POLICY and _holds(index, name):
            wanted.extend(_weights(model, f"{name}."))
        else:
            every = _weights(model)
            wanted.extend(s for s in every if not (without and s.key.startswith(without)))
        shards.require(directory, index, wanted)

    together(look)
    in_turns(lambda: shards.read(directory, index, wanted))


def _keys(models: Iterable[Any]) -> set[str]:
    """The names of the weights of which this rank has a part."""
    return {key for model in models for key in placement.keys(placement.parts(model))}


def _weights(model: Any, prefix: str = "") -> Iterator[Shard]:
    for parameter, made_of in placement.parts(model).items():
        yield from placement.shards(made_of, parameter.detach().view(-1), 0, prefix=prefix)


def _weights_of(models: Mapping[str, Any]) -> Iterator[Shard]:
    """Of models beside the policy, each behind its name."""
    for name, model in models.items():
        yield from _weights(model, f"{name}.")


def _holds(index: shards.Index, name: str) -> bool:
    """Whether the weights of the model of that name are there."""
    return any(key.startswith(f"{name}.") for key in index)


def _of_all(trained: Mapping[str, OptimizedModel]) -> Iterator[Shard]:
    """All that this rank holds of models that are trained."""
    for name, one in trained.items():
        yield from _shards(one.module, one.optimizer, "" if name == _POLICY else f"{name}.")


def _shards(model: Any, optimizer: Optimizer, prefix: str) -> Iterator[Shard]:
    """All that this rank holds of a model: weights, then what the optimizer keeps for them."""
    yield from _weights(model, prefix)
    parts = placement.parts(model)
    for held in optimizer.held():
        for name, memory in held.tensors.items():
            yield from placement.shards(
                parts[held.parameter],
                memory,
                held.start,
                prefix=f"{prefix}optimizer.state.{name}.",
                is_cut=held.is_cut,
            )


def _restore_generators(directory: Path, layout: GroupSizes) -> None:
    rank = dist.get_rank()
    if layout == _layout():
        data = _read(_rng_file(directory, rank))
        rng.restore(msgspec.msgpack.decode(data, type=rng.Generators))
    elif rank == 0:
        log.info("saved by %s, loaded by %s: random generators are new", layout, _layout())


def _layout() -> GroupSizes:
    return GroupSizes(
        ranks=dist.get_world_size(),
        tensor=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline=parallel_state.get_pipeline_model_parallel_world_size(),
        context=parallel_state.get_context_parallel_world_size(),
        expert=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_world_size(),
        stages_of_a_rank=parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
    )


def together(action: Callable[[], Any]) -> list[Any]:
    """As `collective_errors.together`, over the learner's ranks."""
    return collective_errors.together(action, parallel.all_gather_msgpack)


def in_turns(action: Callable[[], Any]) -> list[Any]:
    """As `together`, of what may take longer than a collective: it is done in a thread."""
    own = beside.in_a_thread("checkpoint", action)
    return beside.of_all_ranks(own, parallel.all_gather_msgpack)


def _progress_of(trained: Mapping[str, OptimizedModel]) -> TrainingProgress:
    optimizer = trained[_POLICY].optimizer
    others = {name: one.optimizer for name, one in trained.items() if name != _POLICY}
    return TrainingProgress(
        optimizer.completed_steps,
        _layout(),
        optimizer.schedule_start,
        optimizer.run_id,
        {name: Steps(each.completed_steps, each.schedule_start) for name, each in others.items()},
    )


def _progress(directory: Path) -> TrainingProgress:
    return msgspec.json.decode(_read(directory / _PROGRESS), type=TrainingProgress)


def _rng_file(directory: Path, rank: int) -> Path:
    return directory / f"rng_{rank:05d}.msgpack"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path.parent}: {path.name} is missing") from None
