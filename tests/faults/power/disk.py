"""A disk that knows what it was asked to keep: each file and folder as it is, and as it is durable.

    asked for -> pending -> (a sync that began later has ended) -> durable

A power cut leaves what is durable and, of what is pending, anything: nothing, all, the first parts
with a torn end, or some of it in whatever order. Names are changed in order. A file may be durable
and its name not, and the other way round.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tests.faults.power.recording import Record

__all__ = ["Disk", "File", "Folder"]


class File:
    """Bytes. A change is a place and what is written there, or a new length."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        self.num_settled = 0

    def settle(self, count: int) -> None:
        """What was asked for before the `count`-th change is durable."""
        while self.num_settled < count:
            _change(self.durable, *self.pending.pop(0))
            self.num_settled += 1

    def after(self, changes: list[tuple[int, bytes | None]]) -> bytes:
        content = bytearray(self.durable)
        for change in changes:
            _change(content, *change)
        return bytes(content)

    def torn(self, chance: random.Random) -> bytes:
        """What a power cut may leave of it."""
        some = self.pending[: chance.randrange(len(self.pending) + 1)]
        match chance.choice(["nothing", "all", "first", "some"]):
            case "nothing":
                return self.after([])
            case "all":
                return self.after(self.pending)
            case "some":
                return self.after([change for change in self.pending if chance.random() < 0.5])
        if some and (data := some[-1][1]):
            some[-1] = (some[-1][0], data[: chance.randrange(len(data))])
        return self.after(some)


class Folder:
    """Names. A change takes some away and gives others, at once."""

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []
        self.num_settled = 0

    def settle(self, count: int) -> None:
        while self.num_settled < count:
            self.durable = self.after([self.pending.pop(0)])
            self.num_settled += 1

    def after(self, changes: list[dict[str, "Node | None"]]) -> dict[str, "Node"]:
        found: dict[str, Node | None] = dict(self.durable)
        for change in changes:
            found |= change
        return {name: node for name, node in found.items() if node is not None}

    @property
    def names(self) -> dict[str, "Node"]:
        """As they are."""
        return self.after(self.pending)

    def torn(self, chance: random.Random) -> dict[str, "Node"]:
        return self.after(self.pending[: chance.randrange(len(self.pending) + 1)])


Node = File | Folder


class Disk:
    """The folder `root`, empty and durable at first, under what is recorded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self._syncs: dict[tuple[str, int], tuple[Node, int]] = {}

    def apply(self, record: Record) -> None:
        """Take in what happened; AssertionError for what cannot have happened."""
        match record.op:
            case "M" | "C":
                node: Node = Folder() if record.op == "M" else File()
                self._rename({record.path: node})
            case "R":
                self._rename({record.path: None, record.other: self.find(record.path)})
            case "U":
                self._rename({record.path: None})
            case "W" | "T":
                file = self.find(record.path)
                assert isinstance(file, File)
                data = record.data if record.op == "W" else None
                file.pending.append((record.offset, data))
            case "B":
                begun = self.find(record.path)
                count = begun.num_settled + len(begun.pending)
                self._syncs[record.path, record.offset] = (begun, count)
            case "E" | "F":
                begun, count = self._syncs.pop((record.path, record.offset))
                if record.op == "E":
                    begun.settle(count)

    def find(self, path: str | Path) -> Node:
        """What has this name now."""
        node: Node = self.top
        for name in Path(path).relative_to(self.root).parts:
            assert isinstance(node, Folder), path
            assert name in node.names, f"{path} is not there"
            node = node.names[name]
        return node

    def is_named(self, path: Path) -> bool:
        """Whether a power cut leaves this file or folder its name, and those on the way to it."""
        node: Node | None = self.top
        for name in path.relative_to(self.root).parts:
            assert isinstance(node, Folder)
            here, node = node.names[name], node.durable.get(name)
            if node is not here:
                return False
        return True

    def is_durable(self, path: Path) -> bool:
        """Whether a power cut leaves this file or folder, and all that is in it, as it is."""
        return not any(each.pending for each in _within(self.find(path)))

    def is_durable_through(self, path: Path, num_bytes: int) -> bool:
        """Whether a power cut leaves the first bytes of this file, and its name."""
        file = self.find(path)
        assert isinstance(file, File)
        touched = any(at < num_bytes for at, _ in file.pending)
        return self.is_named(path) and len(file.durable) >= num_bytes and not touched

    def leave(self, place: Path, chance: random.Random | None = None) -> None:
        """Write what a power cut leaves to `place`: all that may go is lost, or by `chance`."""
        _leave(self.top, place, chance)

    def files(self) -> dict[str, bytes]:
        """Every file as it is, by its place under the root."""
        return dict(_files(self.top, ""))

    def _rename(self, changes: dict[str, Node | None]) -> None:
        """In one folder all at once; between two, each is a change of its own."""
        folders: dict[Path, dict[str, Node | None]] = {}
        for path, node in changes.items():
            folders.setdefault(Path(path).parent, {})[Path(path).name] = node
        for folder, names in folders.items():
            node = self.find(folder)
            assert isinstance(node, Folder)
            node.pending.append(names)


def _change(content: bytearray, at: int, data: bytes | None) -> None:
    end = at if data is None else at + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at:end] = data


def _within(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Folder):
        for each in node.names.values():
            yield from _within(each)


def _leave(node: Node, place: Path, chance: random.Random | None) -> None:
    if isinstance(node, File):
        place.write_bytes(node.torn(chance) if chance else node.durable)
        return
    place.mkdir()
    for name, each in (node.torn(chance) if chance else node.durable).items():
        _leave(each, place / name, chance)


def _files(node: Node, place: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(node, File):
        yield place.removeprefix("/"), node.after(node.pending)
        return
    for name, each in node.names.items():
        yield from _files(each, f"{place}/{name}")
