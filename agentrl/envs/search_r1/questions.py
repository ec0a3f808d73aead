"""Questions over the facts: one hop (`What is the capital of France?`) and two hops.

A question is a chain of facts; the value of one is the entity of the next. A country and all that
belongs to it are in one split, so the entities of a chain are, too, and what evaluation asks about
is in no question of the warm start or of RL.

`SearchR1Source` makes training tasks without end: task i is a function of (seed, i) alone, so the
cursor is the whole state. Evaluation sets are fixed lists without repeats.
"""

import random
from functools import cache
from typing import TypeVar

import msgspec

from agentrl.envs.made import MadeSource
from agentrl.envs.search_r1.facts import Fact, Split, facts, lookup
from agentrl.errors import ConfigError
from agentrl.types import Task

__all__ = ["EVAL_SETS", "Question", "SearchR1Source", "ask", "eval_tasks"]

TWO_HOP_SHARE = 0.3

ONE_HOP = (
    "What is the {0} of {entity}?",
    "Tell me the {0} of {entity}.",
    "I want to know the {0} of {entity}.",
)
TWO_HOP = (
    "What is the {1} of the {0} of {entity}?",
    "Tell me the {1} of the {0} of {entity}.",
    "I want to know the {1} of the {0} of {entity}.",
)
OF_CAPITAL = (
    "What is the {1} of the country whose capital is {entity}?",
    "Tell me the {1} of the country whose capital is {entity}.",
    "I want to know the {1} of the country whose capital is {entity}.",
)

#: What a two-hop question asks about the bridge, by the relation that leads to it.
ASKED = {
    "capital": ("currency", "continent", "domain"),
    "country": ("capital", "currency", "continent", "domain"),
    "nation": ("capital", "currency", "continent", "domain"),
}

#: Evaluation sets: name -> (one-hop questions, two-hop questions).
EVAL_SETS = {
    "heldout": (Split.EVAL, 448, 192),
    "hard": (Split.EVAL, 0, 320),
    "dev": (Split.TRAIN, 224, 96),
}
EVAL_SEED = 0

T = TypeVar("T")


class Question(msgspec.Struct, frozen=True):
    """A question, the facts that answer it in order, and the search that finds each of them.

    `entities` is what the question is about: its start and, for two hops, the bridge.
    """

    text: str
    answer: str
    entities: tuple[str, ...]
    chain: tuple[Fact, ...]
    queries: tuple[str, ...]

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(fact.relation for fact in self.chain)

    def row(self) -> dict[str, object]:
        """What `SearchR1Env.reset(task=...)` receives."""
        return {"question": self.text, "answer": self.answer, "relations": list(self.relations)}


class _Link(msgspec.Struct, frozen=True):
    """Two facts that share the bridge. `start` is the entity named by the question."""

    start: str
    query: str
    first: Fact
    second: Fact
    templates: tuple[str, ...]


@cache
def _one_hop(split: Split) -> dict[str, list[Fact]]:
    """Facts of a split by relation."""
    pool: dict[str, list[Fact]] = {}
    for fact in facts():
        if fact.split is split:
            pool.setdefault(fact.relation, []).append(fact)
    return pool


@cache
def _two_hop(split: Split) -> dict[str, list[_Link]]:
    """Links of a split by their pair of relations."""
    pool: dict[str, list[_Link]] = {}
    for first in facts():
        if first.split is not split or first.relation not in ASKED:
            continue
        # A capital leads back to its country; every other value is the bridge itself.
        start, bridge = first.entity, first.value
        query, templates = first.query, TWO_HOP
        if first.relation == "capital":
            start, bridge = bridge, start
            query, templates = f"capital {start}", OF_CAPITAL
        for relation in ASKED[first.relation]:
            second = lookup().get((relation, bridge))
            if second is not None:
                link = _Link(start, query, first, second, templates)
                pool.setdefault(f"{first.relation}/{relation}", []).append(link)
    return pool


def _ask_one(fact: Fact, rng: random.Random) -> Question:
    text = rng.choice(ONE_HOP).format(fact.relation, entity=fact.entity)
    return Question(text, fact.value, (fact.entity,), (fact,), (fact.query,))


def _ask_two(link: _Link, rng: random.Random) -> Question:
    first, second = link.first, link.second
    text = rng.choice(link.templates).format(first.relation, second.relation, entity=link.start)
    entities = (link.start, second.entity)
    return Question(text, second.value, entities, (first, second), (link.query, second.query))


def ask(split: Split, rng: random.Random) -> Question:
    """Draw a question of `split`: relations evenly, then a fact of the relation."""
    if rng.random() < TWO_HOP_SHARE:
        links = _two_hop(split)
        return _ask_two(rng.choice(links[rng.choice(sorted(links))]), rng)
    pool = _one_hop(split)
    return _ask_one(rng.choice(pool[rng.choice(sorted(pool))]), rng)


class SearchR1Source(MadeSource):
    """Training tasks of the default job."""

    def task(self, index: int) -> Task:
        """See `MadeSource`."""
        rng = random.Random(f"search-r1-local/{self.seed}/{index}")
        question = ask(Split.TRAIN, rng)
        return Task(id=f"search-r1-local/train/{self.seed}/{index}", row=question.row())


def eval_tasks(name: str) -> list[Task]:
    """The tasks of an evaluation set: `heldout` (the mix of training), `hard` (two hops), or `dev`:
    questions about what RL trains on, to choose recipes of the warm start by.

    Raises:
        ConfigError: there is no such set.
    """
    questions = eval_questions(name)
    return [
        Task(id=f"search-r1-local/{name}/{index}", row=question.row())
        for index, question in enumerate(questions)
    ]


def eval_questions(name: str) -> list[Question]:
    """The questions behind `eval_tasks(name)`, in the same order."""
    if name not in EVAL_SETS:
        raise ConfigError(f"search-r1-local has no evaluation set {name!r}: use {list(EVAL_SETS)}")
    split, one, two = EVAL_SETS[name]
    rng = random.Random(f"search-r1-local/eval/{EVAL_SEED}")
    singles = _evenly(_one_hop(split), one, rng)
    links = _evenly(_two_hop(split), two, rng)
    questions = [_ask_one(fact, rng) for fact in singles] + [_ask_two(li, rng) for li in links]
    rng.shuffle(questions)
    return questions


def _evenly(pool: dict[str, list[T]], count: int, rng: random.Random) -> list[T]:
    """`count` different members, the classes of the pool in turn until each is used up."""
    decks = [rng.sample(pool[name], len(pool[name])) for name in sorted(pool)]
    chosen: list[T] = []
    while len(chosen) < count:
        chosen += [deck.pop() for deck in decks if deck]
    return chosen[:count]
