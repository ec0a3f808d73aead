"""Settings of verl, AReaL and TRL on agentrl's command line, and what to write instead.

Their users write `actor_rollout_ref.rollout.n=8`, `gconfig.n_samples=4` or `--num_generations 8`.
`tables/peers.toml` has a line for each that the pages docs/from-*.md map; any other setting of a
section of theirs is told whose it is. It is read once such a word was met.
"""

import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["advice", "told"]

_FILE = Path(__file__).with_name("tables") / "peers.toml"


def advice(name: str) -> str | None:
    """What to do instead of the setting `name` (`+trainer.logger`, `--num-generations`, a section
    such as `gconfig`), or None when no peer is known to have it."""
    key = name.lstrip("-+~").replace("-", "_")
    known = [f"{_here(own[key])} ({_page(peer)})" for peer, own in _table().items() if key in own]
    if known:
        return "; ".join(known)
    section = key.partition(".")[0] + "."
    whose = [p for p, own in _table().items() if any(name.startswith(section) for name in own)]
    if not whose:
        return None
    pages = " and ".join(map(_page, whose))
    return f"{' or '.join(whose)} has it; what it has that agentrl has too: {pages}"


def told(name: str, value: Any) -> list[str]:
    """Of the setting `name` of a file a line for each below it that agentrl has too, or else one
    for all of it; none when no peer is known to have it."""
    said = advice(name)
    return list(_known(name, value)) or ([f"{name}: {said}"] if said else [])


def _known(name: str, value: Any) -> Iterator[str]:
    if any(name in own for own in _table().values()):
        yield f"{name}: {advice(name)}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _known(f"{name}.{key}", item)


def _here(said: str) -> str:
    return f"agentrl calls it {said}" if said.startswith("--") else said


def _page(peer: str) -> str:
    return f"docs/from-{peer.lower()}.md"


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
