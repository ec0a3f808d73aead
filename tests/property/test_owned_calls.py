"""Which calls a sample owns is what the plain rule says, which compares a sample with all calls."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.actors.batches.owned import OwnedCalls
from agentrl.actors.endpoint.calls import Call
from agentrl.envs.returned import Returned
from agentrl.errors import EnvError
from agentrl.tokens.spans import Span
from agentrl.types import Generation, SpanKind

#: Two tokens, so that calls often agree.
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=3)


def whole(call: Call) -> list[int]:
    """All tokens up to the end of a call."""
    return [
        id_ for each in call.path() for id_ in (*each.opened[0].ids, *each.generation.output_ids)
    ]


class PlainRule:
    """`OwnedCalls`, without an index."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.owned: set[Call] = set()

    def walk(self, parent: Call | None) -> Iterator[Call]:
        for call in reversed([each for each in self.calls if each.parent is parent]):
            yield call
            yield from self.walk(call)

    def known(self, ids: list[int]) -> dict[Call, tuple[int, int]]:
        """Of each call whose parent's tokens are there: where its answer begins, and to where the
        tokens agree with it."""
        found = {}
        for call in self.walk(None):
            parent = whole(call.parent) if call.parent is not None else []
            if ids[: len(parent)] == parent:
                own = whole(call)
                pairs = enumerate(zip(own, ids, strict=False))
                end = next((at for at, (a, b) in pairs if a != b), min(len(own), len(ids)))
                found[call] = len(own) - len(call.generation.output_ids), end
        answered = {call: place for call, place in found.items() if place[1] > place[0]}
        return answered or found

    def of(self, samples: list[Returned]) -> list[Call]:
        """See `OwnedCalls`."""
        found: dict[Call, None] = {}
        own: dict[Call, None] = {}
        for sample in samples:
            known = self.known(sample.tokens)
            mine: dict[Call, None] = {}
            at = 0
            for token in [at for at, is_trained in enumerate(sample.trained) if is_trained]:
                fits = [call for call, (start, end) in known.items() if start <= token < end]
                if token < at or not fits:
                    continue
                free = [call for call in fits if call not in self.owned]
                if not free:
                    raise EnvError("another sample trains it already")
                best = max(free, key=lambda call: (known[call][1], call not in own))
                mine[best] = None
                at = known[best][1]
            own |= mine
            rest = [call for call in known if call not in self.owned]
            closest = [max(rest, key=lambda call: known[call][1])] if rest else []
            for call in [*mine] or closest:
                found |= dict.fromkeys(call.path())
        self.owned |= own.keys()
        return list(found)


@st.composite
def trees(draw: st.DrawFn) -> list[Call]:
    """Calls, each a first one or after one before it."""
    calls: list[Call] = []
    for _ in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([None, None, *calls]))
        opened, said = draw(IDS), draw(IDS)
        span = Span(SpanKind.UNTRUSTED, opened)
        generation = Generation(said, [-0.5] * len(said), [0] * len(said), "stop")
        calls.append(Call(parent, [span], 0, generation, "policy"))
    return calls


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Call], list[list[Returned]]]:
    """Calls, and the samples of episodes: most go along one of them, some end elsewhere."""
    calls = draw(trees())
    episodes = []
    for _ in range(draw(st.integers(1, 6))):
        episode = []
        for _ in range(draw(st.integers(1, 2))):
            ids = [*whole(draw(st.sampled_from(calls))), *draw(st.just([]) | IDS)]
            ids = ids[: draw(st.integers(1, len(ids)))] if draw(st.booleans()) else ids
            trained = bytes(draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))))
            episode.append(Returned(ids, trained, 0, False))
        episodes.append(episode)
    return calls, episodes


def owned_by(rule: OwnedCalls | PlainRule, episode: list[Returned]) -> list[Call] | None:
    """None: it is refused."""
    try:
        return rule.of(episode)
    except EnvError:
        return None


@given(cases())
def test_the_index_finds_what_the_plain_rule_finds(
    case: tuple[list[Call], list[list[Returned]]],
) -> None:
    calls, episodes = case
    plain, indexed = PlainRule(calls), OwnedCalls(calls)
    for episode in episodes:
        assert owned_by(indexed, episode) == owned_by(plain, episode)


def test_calls_of_other_prompts_are_not_looked_at() -> None:
    """So a batch of many groups is read in one pass, not once for each of its episodes."""
    calls, episodes = [], []
    for group in range(40):
        prompt, said = [group] * 50, [group, 7]
        generation = Generation(said, [-0.5] * 2, [0] * 2, "stop")
        calls.append(Call(None, [Span(SpanKind.UNTRUSTED, prompt)], 0, generation, "policy"))
        episodes.append([Returned([*prompt, *said], bytes(50) + b"\1\1", 50, False)])
    owned = OwnedCalls(calls)
    for call, episode in zip(calls, episodes, strict=True):
        assert [
            node.call for node in owned._beginning(np.asarray(episode[0].tokens, np.int32))
        ] == [call]
        assert owned.of(episode) == [call]
