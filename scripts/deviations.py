"""Write into `docs/objectives.md` where each objective differs from its papers: `deviations` of its
class, and of no other.

python -m scripts.deviations            write the page
python -m scripts.deviations --check    exit 1 if it is not what this would write
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.step_size import StepSize
from agentrl.shipped import ALGORITHMS, TRUST_REGIONS, Shelf
from scripts.pages import cell, filled, rows, write_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "objectives.md"


def page(text: str) -> str:
    """`text` of the page with the table."""
    return filled(text, {"deviations": _table})


def _table() -> Iterator[str]:
    shelves = ((ALGORITHMS, Algorithm, ""), (TRUST_REGIONS, Region, "--trust-region "))
    named = [
        (f"`{prefix}{name}`", one)
        for shelf, base, prefix in shelves
        for name, one in _shipped(shelf, base)
    ]
    named.append(("`--scale-lr-by-ess`", StepSize))
    yield from rows(
        ("objective", "where it differs from its papers"),
        ([name, cell(found)] for name, one in named if (found := _own(one))),
    )


def _shipped(shelf: Shelf, base: type) -> Iterator[tuple[str, type]]:
    """The class of each name of a shelf."""
    for name, place in shelf.places.items():
        own = (value for value in vars(import_module(place)).values() if isinstance(value, type))
        (one,) = (each for each in own if issubclass(each, base) and each.__module__ == place)
        yield name, one


def _own(one: type) -> str:
    """What the class itself says: it is of other papers than the class that it stands on."""
    return str(vars(one).get("deviations", ""))


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
