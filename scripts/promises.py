"""What slime's documentation promises, and what becomes of each promise here.

The promises stand in `promises.toml`. Where one is a matter of flags, the command line is asked for
its answers; where none is, the table names the test that shows it.
"""

import functools
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from agentrl.config import answers
from agentrl.config.explained import explain
from agentrl.config.launch_script import Argument
from scripts.pages import cell, rows

__all__ = ["WALK", "Document", "Judged", "Promise", "documents", "judged", "lines"]

State = Literal["works", "refused", "not yet"]
STATES: tuple[State, ...] = ("works", "refused", "not yet")
#: The test of a row of answers that names none: it walks them all.
WALK = "tests/unit/test_config_answers.py::test_a_row_says_what_the_parser_does"
_FILE = Path(__file__).with_name("promises.toml")


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One promise; what the fields mean says the head of the table."""

    section: str
    says: str
    given: str = ""
    names: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    waits: str = ""
    refused: str = ""
    not_yet: str = ""
    but: str = ""

    @property
    def words(self) -> list[Argument]:
        """What is given, word by word."""
        return list(map(Argument, shlex.split(self.given)))

    @property
    def flags(self) -> list[str]:
        """The flags that are given."""
        return [word.text for word in self.words if word.text.startswith("--")]


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document of slime's, with its promises in their order."""

    name: str
    promises: tuple[Promise, ...]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasons: dict[str, str]
    document: tuple[Document, ...]


class Judged(msgspec.Struct, frozen=True):
    """What becomes of a promise. `why`: of one that is not kept; `tests`: what shows the state."""

    state: State
    why: str = ""
    tests: tuple[str, ...] = ()


@functools.cache
def _table() -> _Table:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Table)


def documents() -> tuple[Document, ...]:
    """The documents, in the order of the table."""
    return _table().document


def judged(promise: Promise) -> Judged:
    """What becomes of `promise`."""
    tests = promise.tests or _shown_by(promise)
    if promise.not_yet:
        return Judged("not yet", promise.not_yet, tests)
    if promise.refused:
        return Judged("refused", _table().reasons[promise.refused], tests)
    if promise.waits:
        needed = answers.missing()[promise.waits]
        return Judged("not yet", f"this waits for {needed.what}; {needed.instead}", tests)
    found = explain(promise.words, "train")
    told = [one.says for one in found if one.answer == "refused"]
    if told:
        state: State = "not yet" if any(map(_waits, told)) else "refused"
        return Judged(state, "; ".join(dict.fromkeys(told)), tests)
    already = [one.says for one in found if one.answer in ("already so", "noted")]
    return Judged("works", "; ".join(already) if len(already) == len(found) else "", tests)


def _waits(said: str) -> bool:
    """Whether an answer is that something is not there yet."""
    return any(needed.what in said for needed in answers.missing().values())


def _shown_by(promise: Promise) -> tuple[str, ...]:
    """The test of each flag."""
    found = [answers.rows()[flag].test or WALK for flag in promise.flags if flag in answers.rows()]
    return tuple(dict.fromkeys(found))


def lines() -> Iterator[str]:
    """How many are kept, and then each of them."""
    states = [[judged(one) for one in document.promises] for document in documents()]
    total = Counter(one.state for found in states for one in found)
    yield (
        f"Of {total.total()} promises {total['works']} work, {total['refused']} are refused, and "
        f"{total['not yet']} are not there yet."
    )
    yield ""
    counts = [Counter(one.state for one in found) for found in states]
    yield from rows(
        ("document", *STATES),
        (
            [document.name, *(str(count[state]) for state in STATES)]
            for document, count in zip(documents(), counts, strict=True)
        ),
    )
    for document, found in zip(documents(), states, strict=True):
        yield ""
        yield f"### Its {document.name}"
        yield ""
        cells = (_cells(*pair) for pair in zip(document.promises, found, strict=True))
        yield from rows(("section", "promised", "here", "shown by"), cells)


def _cells(promise: Promise, one: Judged) -> list[str]:
    here = ": ".join(filter(None, (one.state, one.why)))
    here = "; ".join(filter(None, (here, promise.but)))
    return [promise.section, promise.says, cell(here), ", ".join(f"`{test}`" for test in one.tests)]
