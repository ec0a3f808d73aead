"""Demonstrations of the warm start: dialogues about the `warm` split, as rows of chat messages.

A *full* demonstration searches for every fact of the chain and answers with the last value. A
*hasty* one is wrong on purpose: it answers at once with some value of the right kind, or (two hops)
stops at the bridge and answers that. Their share leaves RL something to find: a model that can
search, and mostly does not.

In a *renamed* demonstration every name is replaced by another one drawn at random, the same in
question, passages and answer. Nothing of it can be remembered: the model must learn to read and
copy, which is what carries over to names that it has never seen. A *spliced* name is made of two
real ones: what follows "Unit" must be read, too, and not guessed from the names that begin so.

Only passages of the warm split are searched here, so names of the other splits are never seen.
"""

import random
from collections.abc import Callable
from functools import cache
from string import ascii_lowercase
from typing import Any

import msgspec

from agentrl.envs.search_r1.facts import Fact, Split, facts
from agentrl.envs.search_r1.questions import Question, ask
from agentrl.envs.search_r1.retriever import Index

__all__ = ["Demonstrator"]

TOPK = 3


class Dialogue(msgspec.Struct, frozen=True):
    """A demonstration as text: the question, pairs of query and result, the answer."""

    question: str
    searches: list[tuple[str, str]]
    answer: str


class Demonstrator:
    """Demonstrations without end, fixed by `seed`."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"search-r1-local/warm/{seed}")
        self._facts = [fact for fact in facts() if fact.split is Split.WARM]
        self._index = Index([fact.passage for fact in self._facts])
        self._values: dict[str, list[str]] = {}
        for fact in self._facts:
            self._values.setdefault(fact.relation, []).append(fact.value)
        self._names = sorted({fact.entity for fact in self._facts})
        self._search = cache(self._search_once)

    def demonstrate(
        self, *, hasty: bool, renamed: bool, spliced: float = 0.0
    ) -> list[dict[str, Any]]:
        """The next demonstration, as messages of OpenAI's chat API.

        `spliced`: share of a renamed one's new names that are made of two.
        """
        while True:
            rename = Renaming(self._names, self._rng, spliced) if renamed else str
            dialogue = self._dialogue(ask(Split.WARM, self._rng), hasty, rename)
            if dialogue is not None:
                return _messages(dialogue)

    def _dialogue(
        self, question: Question, hasty: bool, rename: Callable[[str], str]
    ) -> Dialogue | None:
        """None where a search does not find the fact that it is for."""
        answer, num_searches = self._plan(question, hasty)
        # A guess has nothing to copy, so there is nothing to learn from a made-up one.
        if num_searches == 0:
            rename = str
        searches: list[tuple[str, str]] = []
        for wanted, query in list(zip(question.chain, question.queries, strict=True))[
            :num_searches
        ]:
            found = list(self._search(query))
            if wanted not in found:
                return None
            self._rng.shuffle(found)
            lines = [
                Fact(fact.relation, rename(fact.entity), rename(fact.value), fact.split).passage
                for fact in found
            ]
            start = query[: -len(question.entities[len(searches)])]
            searches.append((start + rename(question.entities[len(searches)]), "\n".join(lines)))
        before, start, after = question.text.rpartition(question.entities[0])
        return Dialogue(before + rename(start) + after, searches, rename(answer))

    def _plan(self, question: Question, hasty: bool) -> tuple[str, int]:
        """The answer to give and how many searches come before it."""
        hops = len(question.chain)
        if not hasty:
            return question.answer, hops
        if hops > 1 and self._rng.random() < 0.5:
            return question.entities[-1], hops - 1
        return self._rng.choice(self._values[question.relations[-1]]), 0

    def _search_once(self, query: str) -> tuple[Fact, ...]:
        (hits,) = self._index.search([query], TOPK)
        return tuple(self._facts[int(hit.document.id)] for hit in hits)


def _messages(dialogue: Dialogue) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": dialogue.question}]
    for query, result in dialogue.searches:
        call = {"function": {"name": "search", "arguments": {"query": query}}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "content": result})
    messages.append({"role": "assistant", "content": f"<answer> {dialogue.answer} </answer>"})
    return messages


class Renaming:
    """Replaces each name by another real one or by a splice of two, the same always by the same."""

    def __init__(self, names: list[str], rng: random.Random, spliced: float) -> None:
        self._names = names
        self._rng = rng
        self._spliced = spliced
        self._new: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._new:
            self._new[name] = self._other(name)
        return self._new[name]

    def _other(self, name: str) -> str:
        letters = name.lstrip(".")
        if letters.islower():
            made_up = "".join(self._rng.choices(ascii_lowercase, k=len(letters)))
            return name[: -len(letters)] + made_up
        other = self._rng.choice(self._names)
        if self._spliced and self._rng.random() < self._spliced:
            return self._splice(other, self._rng.choice(self._names))
        return other

    def _splice(self, first: str, second: str) -> str:
        """The beginning of one name and the end of another, at most as long as the longer."""
        cut = self._rng.randint(1, max(1, len(first) - 1))
        return first[:cut] + second[min(cut, len(second) - 1) :]
