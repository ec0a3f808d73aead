"""Tensors on disk that hold those of all experts of a layer, and which single ones these are.

Some checkpoints have one tensor for each expert and projection, others of the same model one for
all experts. The table of a family names the single ones, and only these leave a learner: in this
form transformers writes them, and engines take both.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["EXPERTS_STACKED", "Slice", "Stacks", "taken_apart"]

#: The end of a name on disk, and the ends of the names of what each expert has there, which stand
#: one after the other in its rows.
Stacks = Mapping[str, tuple[str, ...]]

EXPERTS_STACKED: Stacks = {
    ".experts.gate_up_proj": (
        ".experts.{expert}.gate_proj.weight",
        ".experts.{expert}.up_proj.weight",
    ),
    ".experts.down_proj": (".experts.{expert}.down_proj.weight",),
}


class Slice(NamedTuple):
    """A tensor by the name that a family knows, its shape, and where in the one on disk it lies."""

    name: str
    shape: tuple[int, ...]
    where: tuple[int | slice, ...] = ()


def taken_apart(name: str, shape: tuple[int, ...], stacks: Stacks) -> Iterator[Slice]:
    """What a tensor on disk is; a stack of shape [experts, rows, columns] that cannot be shared out
    evenly stays what it is, for others to refuse."""
    end = next((end for end in stacks if name.endswith(end)), None)
    pieces = stacks[end] if end is not None else ()
    if end is None or len(shape) != 3 or shape[1] % len(pieces):
        yield Slice(name, shape)
        return
    rows, head = shape[1] // len(pieces), name.removesuffix(end)
    for expert in range(shape[0]):
        for number, piece in enumerate(pieces):
            here = slice(number * rows, (number + 1) * rows)
            yield Slice(head + piece.format(expert=expert), (rows, shape[2]), (expert, here))
