"""Which of many calls a sample consists of: those that it trains tokens of. Pure.

Siblings share a first prompt, and often their first tokens. Each place of a sample belongs to the
call that agrees with it the furthest, of those that no other sample owns; so each call is one
sample's. First calls are found by their prompt: a sample is compared with its siblings alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.actors.endpoint.calls import Call
from agentrl.envs.returned import Returned
from agentrl.errors import EnvError

__all__ = ["OwnedCalls"]

_Ids = NDArray[np.int32]
#: Tokens that are compared first: most siblings differ early.
_HEAD = 64


class _Node(NamedTuple):
    """A call: its tokens after its parent's, of which the first `num_opened` are no answer."""

    call: Call
    ids: _Ids
    num_opened: int
    nexts: "list[_Node]"


class _Place(NamedTuple):
    """Where the answer of a call begins in a sample, and how far they agree."""

    start: int
    end: int


class OwnedCalls:
    """The calls of a batch, and which of them a sample owns by now."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._firsts: list[_Node] = []
        nodes: dict[Call, _Node] = {}
        for call in calls:
            opened = [id_ for span in call.opened for id_ in span.ids]
            ids = np.asarray([*opened, *call.generation.output_ids], np.int32)
            nodes[call] = node = _Node(call, ids, len(opened), [])
            siblings = self._firsts if call.parent is None else nodes[call.parent].nexts
            siblings.append(node)
        #: The places in `_firsts` of those with one prompt, by its digest.
        self._by_prompt: dict[bytes, list[int]] = {}
        for at, node in enumerate(self._firsts):
            (digest,) = _digests(node.ids, [node.num_opened])
            self._by_prompt.setdefault(digest, []).append(at)
        self._lengths = sorted({node.num_opened for node in self._firsts})
        self._owned: set[Call] = set()

    def of(self, samples: Sequence[Returned]) -> list[Call]:
        """The calls of the samples of one episode, and those before them on their paths. Where none
        fits, the one that agrees the furthest, of which the binder says why it does not. Raises
        EnvError for a token that another sample trains."""
        found: dict[Call, None] = {}
        own: set[Call] = set()
        for number, sample in enumerate(samples):
            ids = np.asarray(sample.tokens, np.int32)
            trained = np.flatnonzero(np.frombuffer(sample.trained, np.uint8))
            known = self._known(ids)
            mine = self._mine(number, known, trained, own)
            own.update(mine)
            for call in mine or self._closest(known):
                found.update(dict.fromkeys(call.path()))
        self._owned |= own
        return list(found)

    def _mine(
        self, number: int, known: dict[Call, _Place], trained: NDArray[np.intp], own: set[Call]
    ) -> list[Call]:
        """`own`: calls of other samples of the episode, which may share one."""
        mine: dict[Call, None] = {}
        at = 0
        while at < len(trained):
            token = int(trained[at])
            fits = [call for call, place in known.items() if place.start <= token < place.end]
            free = [call for call in fits if call not in self._owned]
            if fits and not free:
                raise EnvError(
                    f"sample {number}, token {token} has loss_mask 1, and another sample trains it "
                    "already: a token is trained once; give it loss_mask 0 in one of them"
                )
            if free:
                best = max(free, key=lambda call: (known[call].end, call not in own))
                mine[best] = None
                ahead = known[best].end
            else:
                later = [place.start for place in known.values() if place.start > token]
                ahead = min(later, default=int(trained[-1]) + 1)
            at = int(np.searchsorted(trained, ahead))
        return list(mine)

    def _closest(self, known: dict[Call, _Place]) -> list[Call]:
        free = [call for call in known if call not in self._owned]
        return [max(free, key=lambda call: known[call].end)] if free else []

    def _known(self, ids: _Ids) -> dict[Call, _Place]:
        """Each call whose prompt the tokens begin with, and some of whose answer; without any,
        those that agree the furthest."""
        found = _places(ids, self._beginning(ids))
        answered = {call: place for call, place in found.items() if place.end > place.start}
        return answered or _places(ids, self._firsts)

    def _beginning(self, ids: _Ids) -> list[_Node]:
        """The first calls whose whole prompt the tokens begin with, in their order."""
        lengths = [length for length in self._lengths if length <= len(ids)]
        places = [self._by_prompt.get(digest, []) for digest in _digests(ids, lengths)]
        return [self._firsts[at] for at in sorted(at for found in places for at in found)]


def _places(ids: _Ids, firsts: Iterable[_Node]) -> dict[Call, _Place]:
    """Of `firsts`, and of what continues those that `ids` agree with to their end."""
    found: dict[Call, _Place] = {}
    ahead = [(node, 0) for node in firsts]
    while ahead:
        node, start = ahead.pop()
        end = start + _num_same(node.ids, ids[start : start + len(node.ids)])
        found[node.call] = _Place(start + node.num_opened, end)
        if end == start + len(node.ids):
            ahead += [(each, end) for each in node.nexts]
    return found


def _num_same(one: _Ids, other: _Ids) -> int:
    """How many first tokens are the same."""
    size = min(len(one), len(other))
    for start, end in ((0, min(_HEAD, size)), (_HEAD, size)):
        differs = one[start:end] != other[start:end]
        if differs.any():
            return start + int(differs.argmax())
    return size


def _digests(ids: _Ids, lengths: Iterable[int]) -> Iterator[bytes]:
    """Of the first tokens, so many each time; `lengths` grow."""
    raw, seen, digest = memoryview(ids.tobytes()), 0, blake2b(digest_size=16)
    for length in lengths:
        digest.update(raw[4 * seen : 4 * length])
        seen = length
        yield digest.digest()
