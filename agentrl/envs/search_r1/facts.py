"""The bundled facts and the passages made of them.

Owns the reading of `data/facts.tsv` (see `data/README.md` for where it comes from). Three splits,
disjoint by entity: `warm` for the warm start, `train` for RL, `eval` for evaluation. Everyone
searches the passages of all three.

In running text a name always has a space before it (`" Paris."`, `" Paris </answer>"`): a
byte-level tokenizer gives `"Paris"` and `" Paris"` unrelated tokens, and a model can copy only
what is spelled the same way in both places.
"""

import csv
from enum import StrEnum
from functools import cache
from importlib.resources import files

import msgspec

from agentrl.errors import DataError

__all__ = ["Fact", "Split", "facts", "lookup", "passages"]

HEADER = ["relation", "entity", "object", "split"]


class Split(StrEnum):
    """Which part of the job may ask about an entity."""

    WARM = "warm"
    TRAIN = "train"
    EVAL = "eval"


class Fact(msgspec.Struct, frozen=True):
    """`The {relation} of {entity} is {value}.`"""

    relation: str
    entity: str
    value: str
    split: Split

    @property
    def passage(self) -> str:
        """The line of the corpus that states this fact; it begins with a space."""
        return f" The {self.relation} of {self.entity} is {self.value}."

    @property
    def query(self) -> str:
        """The search that finds the passage."""
        return f"{self.relation} of {self.entity}"


@cache
def facts() -> tuple[Fact, ...]:
    """All facts in file order.

    Raises:
        DataError: the file is not a table of `relation, entity, object, split`.
    """
    source = files(__package__) / "data" / "facts.tsv"
    with source.open(encoding="utf-8") as handle:
        rows = csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        if (header := next(rows, None)) != HEADER:
            raise DataError(f"{source} has the columns {header}, not {HEADER}: build it again")
        return tuple(Fact(relation, entity, value, Split(s)) for relation, entity, value, s in rows)


@cache
def lookup() -> dict[tuple[str, str], Fact]:
    """The one fact of each (relation, entity)."""
    return {(fact.relation, fact.entity): fact for fact in facts()}


def passages() -> list[str]:
    """The corpus: one passage a fact, in file order."""
    return [fact.passage for fact in facts()]
