"""Settings of verl, AReaL and TRL on agentrl's command line, and what to write instead.

Their users write `actor_rollout_ref.rollout.n=8`, `gconfig.n_samples=4` or `--num_generations 8`.
`tables/peers.toml` has a line for each: what the command line says, and the cells of the pages
docs/from-*.md. Any other setting of a section of theirs is told whose it is. The table is read once
such a word was met.
"""

import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Setting", "advice", "settings", "told"]

_FILE = Path(__file__).with_name("tables") / "peers.toml"
_FLAG = re.compile(r"--[a-z][a-z-]*")


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of another trainer. `says`: the flag to write instead and what is not the same, or
    why there is none; `here`, `note`: its cells on the page of that trainer."""

    says: str
    here: str = ""
    note: str = ""

    @property
    def flag(self) -> str:
        """The flag that takes its place, or nothing."""
        found = _FLAG.match(self.says)
        return found[0] if found else ""

    @property
    def cell(self) -> str:
        """What the page says that takes its place."""
        return self.here or (f"`{self.flag}`" if self.flag else "not here")


def advice(name: str) -> str | None:
    """What to do instead of the setting `name` (`+trainer.logger`, `--num-generations`, a section
    such as `gconfig`), or None when no peer is known to have it."""
    key = name.lstrip("-+~").replace("-", "_")
    known = [
        f"{_here(own[key].says)} ({_page(peer)})" for peer, own in settings().items() if key in own
    ]
    if known:
        return "; ".join(known)
    section = key.partition(".")[0] + "."
    whose = [p for p, own in settings().items() if any(name.startswith(section) for name in own)]
    if not whose:
        return None
    pages = " and ".join(map(_page, whose))
    return f"{' or '.join(whose)} has it; settings of it that agentrl has too: {pages}"


def told(name: str, value: Any) -> list[str]:
    """A line for each setting below `name` of a file that agentrl has too, or else one for all of
    it; none when no peer is known to have it."""
    said = advice(name)
    return list(_known(name, value)) or ([f"{name}: {said}"] if said else [])


def _known(name: str, value: Any) -> Iterator[str]:
    if any(name in own for own in settings().values()):
        yield f"{name}: {advice(name)}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _known(f"{name}.{key}", item)


def _here(said: str) -> str:
    return f"agentrl calls it {said}" if said.startswith("--") else said


def _page(peer: str) -> str:
    return f"docs/from-{peer.lower()}.md"


@functools.cache
def settings() -> dict[str, dict[str, Setting]]:
    """The settings of each trainer (verl, AReaL, TRL), by their names there."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return msgspec.convert(table, dict[str, dict[str, Setting]])
