"""Which of many calls a sample consists of: those that it trains tokens of. Pure.

Siblings share a first prompt, and often their first tokens. Each place of a sample belongs to the
call that agrees with it the furthest, of those that no other sample has; so each call is one
sample's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.actors.endpoint.calls import Call
from agentrl.envs.returned import Returned
from agentrl.errors import EnvError

__all__ = ["Claims"]

_Ids = NDArray[np.int64]


class Claims:
    """The calls of a batch, and which are claimed."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._firsts: list[Call] = []
        self._nexts: dict[Call, list[Call]] = {}
        for call in calls:
            siblings = self._firsts
            if call.parent is not None:
                siblings = self._nexts.setdefault(call.parent, [])
            siblings.append(call)
        self._claimed: set[Call] = set()

    def of(self, samples: Sequence[Returned]) -> list[Call]:
        """The calls of the samples of one episode, and those before them on their paths. Where none
        fits, the one that agrees the furthest, of which the binder says why it does not. Raises
        EnvError for a token that another sample trains."""
        found: dict[Call, None] = {}
        own: set[Call] = set()
        for number, sample in enumerate(samples):
            ids = np.asarray(sample.tokens, np.int64)
            trained = np.flatnonzero(np.frombuffer(sample.trained, np.uint8))
            known = self._known(ids)
            mine = self._mine(number, known, trained, own)
            own.update(mine)
            for call in mine or self._closest(known):
                found.update(dict.fromkeys(call.path()))
        self._claimed |= own
        return list(found)

    def _mine(
        self,
        number: int,
        known: dict[Call, tuple[int, int]],
        trained: NDArray[np.intp],
        own: set[Call],
    ) -> list[Call]:
        """`own`: calls of other samples of the episode, which may share one."""
        mine: list[Call] = []
        at = 0
        while at < len(trained):
            place = int(trained[at])
            fits = [call for call, (start, end) in known.items() if start <= place < end]
            free = [call for call in fits if call not in self._claimed]
            if fits and not free:
                raise EnvError(
                    f"sample {number}, token {place} has loss_mask 1, and another sample trains it "
                    "already: a token is trained once; give it loss_mask 0 in one of them"
                )
            best = max(free, key=lambda call: (known[call][1], call not in own), default=None)
            if best is not None and best not in mine:
                mine.append(best)
            at = at + 1 if best is None else int(np.searchsorted(trained, known[best][1]))
        return mine

    def _closest(self, known: dict[Call, tuple[int, int]]) -> list[Call]:
        free = [call for call in known if call not in self._claimed]
        return [max(free, key=lambda call: known[call][1])] if free else []

    def _known(self, ids: _Ids) -> dict[Call, tuple[int, int]]:
        """Each call whose prompt the tokens begin with, with where its answer begins in them and
        how far they agree with it; without any, those that agree the furthest."""
        found: dict[Call, tuple[int, int]] = {}
        others: dict[Call, tuple[int, int]] = {}
        ahead = [(call, 0) for call in self._firsts]
        while ahead:
            call, start = ahead.pop()
            opened = [id_ for span in call.opened for id_ in span.ids]
            own = np.asarray([*opened, *call.generation.output_ids], np.int64)
            size = min(len(own), len(ids) - start)
            differs = np.flatnonzero(own[:size] != ids[start : start + size])
            end = start + (int(differs[0]) if len(differs) else size)
            answer = start + len(opened)
            (found if end > answer else others)[call] = (answer, end)
            if end == start + len(own):
                ahead += [(each, end) for each in self._nexts.get(call, ())]
        return found or others
