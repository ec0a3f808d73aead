"""The weights of a model as whole tensors under their Hugging Face names, read and written.

Two authorities, and no third table: megatron-core says which part of which whole tensor each
parameter and each buffer of this rank is (`placement`), the family says which Hugging Face tensors
a whole one is made of. Loading fills all of them and refuses a checkpoint that lacks a tensor or
has one too many. Exporting puts each whole tensor together on all ranks. A round trip is bit-equal.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.learner.megatron import parallel, placement
from agentrl.models.family import Family, Split, TensorPiece
from agentrl.models.registry import Model

__all__ = ["Weights"]


class _Box(NamedTuple):
    """A box of a whole tensor, and where this rank keeps it. `is_told`: it is this rank that tells
    the others; those that hold copies do not."""

    parameter: Any
    start: int
    sizes: tuple[int, ...]
    where: tuple[slice, ...]
    is_told: bool

    def memory(self) -> Tensor:
        flat: Tensor = self.parameter.detach().view(-1)
        return flat[self.start : self.start + prod(self.sizes)].view(self.sizes)


class _Whole(NamedTuple):
    """A whole tensor, of which this rank holds `boxes`, maybe none. `told`: the boxes that each
    rank of `group` tells the others, by rank; ranks that tell none are left out. `key`: as
    megatron-core calls it."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    hf: tuple[str, ...]
    split: Split
    boxes: list[_Box]
    group: dist.ProcessGroup
    told: dict[int, list[tuple[slice, ...]]]


class Weights:
    """The weights of `built`, this rank's share of `model`. Made once, for its parameters keep
    their identity; collective. `without`: how megatron-core's names begin of those that are left
    out, as no Hugging Face model has them.

    Raises ConfigError for a tensor of which the family says nothing, or something impossible.
    """

    def __init__(self, built: Any, model: Model, *, without: str = "") -> None:
        self._model = model
        self._any = next(built.parameters())
        held = _held(built, model.family)
        facts = {
            key: (
                shape,
                _name(boxes[0]),
                _is_expert(boxes[0].parameter),
                [_ends(box) for box in boxes if box.is_told],
            )
            for key, (shape, boxes) in held.items()
        }
        everyone = parallel.all_gather_msgpack(facts)
        replica = parallel_state.get_model_parallel_group()
        replica_with_experts = parallel_state.get_expert_tensor_model_pipeline_parallel_group()
        found = []
        for key, (shape, dtype, is_expert, _) in {
            k: v for each in everyone for k, v in each.items()
        }.items():
            if without and key.startswith(without):
                continue
            named = model.family.named(key)
            if named is None:
                raise ConfigError(
                    f"model family {model.family.name} says nothing of the tensor {key}, which "
                    "megatron-core has for this model: add a Part to its table"
                )
            group = replica_with_experts if is_expert else replica
            told = {
                rank: [tuple(slice(*ends) for ends in box) for box in boxes]
                for rank in dist.get_process_group_ranks(group)
                if (boxes := everyone[rank].get(key, [[]])[-1])
            }
            whole = _Whole(
                key=key,
                shape=tuple(shape),
                dtype=getattr(torch, dtype),
                hf=named.hf,
                split=named.split,
                boxes=held[key][1] if key in held else [],
                group=group,
                told=told,
            )
            found.append((named.order, whole))
        self._wholes = [whole for _, whole in sorted(found, key=lambda each: each[0])]
        self.shapes = {
            name: _joined_shape(pieces)
            for whole in self._wholes
            for name, pieces in self._on_disk(whole, torch.empty(whole.shape, device="meta"))
        }

    def _on_disk(self, whole: _Whole, tensor: Tensor) -> Iterator[tuple[str, list[TensorPiece]]]:
        """The Hugging Face tensors of a whole `tensor`: name, and its rows in pieces."""
        pieces = whole.split(tensor, self._model.architecture)
        if len(pieces) != len(whole.hf):
            raise ConfigError(
                f"model family {self._model.family.name} has {len(whole.hf)} names "
                f"({', '.join(whole.hf)}) for a tensor that it splits into {len(pieces)} pieces"
            )
        for name, group in groupby(zip(whole.hf, pieces, strict=True), key=lambda each: each[0]):
            yield name, [piece for _, piece in group]

    def made_of(self) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Parameters of this rank, and names of Hugging Face tensors that elements of it are of; a
        parameter comes once for each of its boxes."""
        for whole in self._wholes:
            for box in whole.boxes:
                yield box.parameter, whole.hf

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set every parameter of this rank from the full `tensors`, which have the names and shapes
        of `shapes` and may be read lazily."""
        for parameter, start, values in self.fused(tensors):
            memory = parameter.detach().view(-1)[start : start + values.numel()]
            memory.view(values.shape).copy_(values)

    @torch.no_grad()
    def fused(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Any, int, Tensor]]:
        """What the parameters of this rank are in the full `tensors`: a parameter, where in its
        memory some of its elements begin, and these. One whole tensor at a time is held."""
        for whole in self._wholes:
            if not whole.boxes:
                continue
            full = torch.empty(whole.shape, dtype=whole.boxes[0].parameter.dtype)
            for name, pieces in self._on_disk(whole, full):
                axis = pieces[0].axis
                parts = tensors[name].split_with_sizes([p.shape[axis] for p in pieces], axis)
                for piece, part in zip(pieces, parts, strict=True):
                    piece.view.copy_(part.reshape(piece.view.shape))
            for box in whole.boxes:
                yield box.parameter, box.start, full[box.where]

    @torch.no_grad()
    def split(self, fill: Callable[[Any, int, Tensor], None]) -> Iterator[tuple[str, Tensor]]:
        """The other way, on one rank that holds all: full tensors by Hugging Face name, of elements
        that `fill` writes: of a parameter, from where in its memory, into which flat tensor."""
        for whole in self._wholes:
            full = torch.empty(whole.shape, dtype=whole.boxes[0].parameter.dtype)
            for box in whole.boxes:
                values = torch.empty(prod(box.sizes), dtype=full.dtype)
                fill(box.parameter, box.start, values)
                full[box.where] = values.view(box.sizes)
            yield from self._named(whole, full)

    @torch.no_grad()
    def export(self, *, without: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full tensors by Hugging Face name, on every rank, in the order of the layers; one whole
        tensor at a time is held in full. `without`: how megatron-core's names begin of those that
        are left out. Collective: all ranks must exhaust it."""
        for whole in self._wholes:
            if without is None or not whole.key.startswith(without):
                yield from self._named(whole, self._gathered(whole))

    def _named(self, whole: _Whole, full: Tensor) -> Iterator[tuple[str, Tensor]]:
        for name, pieces in self._on_disk(whole, full):
            parts = [piece.view.reshape(piece.shape) for piece in pieces]
            whole_piece = parts[0] if len(parts) == 1 else torch.cat(parts, pieces[0].axis)
            yield name, whole_piece.contiguous()

    def _gathered(self, whole: _Whole) -> Tensor:
        """The whole tensor on every rank. As bytes: not every backend sends every type."""
        mine = [box for box in whole.boxes if box.is_told]
        if list(whole.told) == [dist.get_rank()] and _is_in_order(whole.shape, mine):
            rows = mine[0].parameter.detach().view(-1, *whole.shape[1:])
            full: Tensor = rows[: whole.shape[0]].view(whole.shape)
            mine = []
        else:
            full = torch.empty(whole.shape, dtype=whole.dtype, device=self._any.device)
        if len(whole.told) > 1:
            self._gather(whole, mine, full)
            return full
        for box in mine:
            full[box.where] = box.memory()
        (teller,) = whole.told
        dist.broadcast(full.view(-1).view(torch.uint8), teller, group=whole.group)
        return full

    def _gather(self, whole: _Whole, mine: list[_Box], full: Tensor) -> None:
        """Fill `full` box by box of every rank; one that is rows of it arrives in its place."""
        for turn in range(max(map(len, whole.told.values()))):
            boxes = {rank: told[turn] for rank, told in whole.told.items() if turn < len(told)}
            longest = max(full[box].numel() for box in boxes.values())
            sent = mine[turn].memory().reshape(-1) if turn < len(mine) else full.new_empty(0)
            if sent.numel() < longest:
                sent = torch.cat([sent, full.new_empty(longest - sent.numel())])
            in_place = {
                rank: full[box].view(-1)
                for rank, box in boxes.items()
                if full[box].is_contiguous() and full[box].numel() == longest
            }
            shares = {
                rank: in_place[rank] if rank in in_place else torch.empty_like(sent)
                for rank in dist.get_process_group_ranks(whole.group)
            }
            as_bytes = [share.view(torch.uint8) for share in shares.values()]
            dist.all_gather(as_bytes, sent.view(torch.uint8), group=whole.group)
            for rank in boxes.keys() - in_place.keys():
                there = full[boxes[rank]]
                there.copy_(shares[rank][: there.numel()].view(there.shape))


def _held(built: Any, family: Family) -> dict[str, tuple[tuple[int, ...], list[_Box]]]:
    """Shape and boxes of each whole tensor of which this rank has a part, by the key that the table
    of `family` has: a tensor of all experts, which has an axis for them, is one for each, by its
    number, unless the table names all of them as one."""
    found: dict[str, tuple[tuple[int, ...], list[_Box]]] = {}
    for parameter, made_of in placement.parts(built).items():
        _mark(parameter, made_of)
        start = 0
        for part in made_of:
            apart = 0 if family.named(part.key) else part.prepend_axis_num
            sizes = (1,) * (part.prepend_axis_num - apart) + tuple(part.local_shape)
            offset = part.global_offset[apart:]
            where = tuple(slice(o, o + n) for o, n in zip(offset, sizes, strict=True))
            box = _Box(parameter, start, sizes, where, not any(part.replica_id[:-1]))
            key = ".".join([part.key, *map(str, part.global_offset[:apart])])
            found.setdefault(key, (tuple(part.global_shape[apart:]), []))[1].append(box)
            start += prod(sizes)
        parameter.detach().view(-1)[start:] = 0.0  # padding, which nothing else sets
    return found


def _joined_shape(pieces: list[TensorPiece]) -> tuple[int, ...]:
    """Of the Hugging Face tensor that those are."""
    shape: tuple[int, ...] | None = None
    for piece in pieces:
        shape = piece.behind(shape)
    assert shape is not None
    return shape


def _ends(box: _Box) -> list[tuple[int, int]]:
    return [(axis.start, axis.stop) for axis in box.where]


def _is_in_order(shape: tuple[int, ...], boxes: list[_Box]) -> bool:
    """Whether boxes that are the whole tensor lie in one parameter as they lie in the tensor."""
    row = prod(shape[1:])
    return all(
        box.parameter is boxes[0].parameter
        and box.sizes[1:] == shape[1:]
        and box.start == (box.where[0].start if shape else 0) * row
        for box in boxes
    )


def _mark(parameter: Any, made_of: list[Any]) -> None:
    """Say which parameters are shared out: without it megatron-core, which marks them only when it
    initializes them itself, leaves all but one rank's share out of the gradient norm."""
    part = made_of[0]
    cut = part.axis_fragmentations[part.prepend_axis_num :]
    axes = [axis for axis, pieces in enumerate(cut) if pieces > 1]
    # Other tensor-parallel ranks have other experts, or other parts of them.
    if axes or _is_expert(parameter):
        parameter.tensor_model_parallel = True
        parameter.partition_dim = axes[0] if axes else 0
        parameter.partition_stride = 1


def _is_expert(parameter: Any) -> bool:
    """Whether it belongs to one of several experts that ranks share out."""
    return not getattr(parameter, "allreduce", True)


def _name(box: _Box) -> str:
    return str(box.parameter.dtype).removeprefix("torch.")
