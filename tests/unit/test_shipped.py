"""What ships is found by a line of its own file: what it stands on is in no list."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from agentrl import shipped, tools
from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.regions.base import Region
from agentrl.shipped import ALGORITHMS, CHAT_FORMATS, TOOLS, TRACKERS, TRUST_REGIONS, Shelf
from agentrl.telemetry.trackers.base import Tracker
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.formats.marked import Marked
from agentrl.tools.tool import Tool

SHELVES = [thing for thing in vars(shipped).values() if isinstance(thing, Shelf)]
KINDS: list[tuple[Shelf, tuple[type, ...]]] = [
    (ALGORITHMS, (Algorithm,)),
    (CHAT_FORMATS, (ChatML, Marked)),
    (TRACKERS, (Tracker,)),
    (TRUST_REGIONS, (Region,)),
]


def homes(shelf: Shelf, kinds: tuple[type, ...]) -> set[str]:
    """Modules of a shelf that define a concrete class of its kind which may be chosen."""
    folder = Path(shipped.__file__).parents[1].joinpath(*shelf.package.split("."))
    names = (f"{shelf.package}.{path.stem}" for path in folder.glob("[!_]*.py"))
    return {
        cls.__module__
        for name in names
        for cls in vars(importlib.import_module(name)).values()
        if isinstance(cls, type)
        and issubclass(cls, kinds)
        and cls.__module__ == name != f"{shelf.package}.base"
        and not inspect.isabstract(cls)
        and cls not in kinds
        and getattr(cls, "is_chosen", True)
    }


@pytest.mark.parametrize(("shelf", "kinds"), KINDS, ids=lambda x: getattr(x, "package", ""))
def test_every_class_of_a_kind_is_found(shelf: Shelf, kinds: tuple[type, ...]) -> None:
    assert set(shelf.places.values()) == homes(shelf, kinds)


def test_every_function_that_is_a_tool_is_found() -> None:
    """Those that need no Env; a helper of a tool may be one beside it."""
    modules = (f"{TOOLS.package}.{info.name}" for info in pkgutil.iter_modules(tools.__path__))
    found = {
        name
        for name in modules
        for one in vars(importlib.import_module(name)).values()
        if isinstance(one, Tool) and one.fn.__module__ == name and not one.parameters.is_method
    }
    assert set(TOOLS.places.values()) == found


@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.package)
def test_what_a_shelf_stands_on_is_nothing_that_one_chooses(shelf: Shelf) -> None:
    assert shelf.places
    assert not shelf.places.keys() & {"base", "load", "registry", "run"}
