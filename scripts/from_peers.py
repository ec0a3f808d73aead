"""Write the tables of settings in docs/from-verl.md, docs/from-areal.md and docs/from-trl.md.

They are those of `agentrl/config/tables/peers.toml`, which the command line knows too.

    python -m scripts.from_peers            write the pages
    python -m scripts.from_peers --check    exit 1 if one differs from the table
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from agentrl.config import peers
from scripts.pages import filled, rows, write_pages

DOCS = Path(__file__).resolve().parent.parent / "docs"


def settings(peer: str) -> Iterator[str]:
    """The table of a trainer's settings."""
    found = peers.settings()[peer]
    cells = ([f"`{name}`", setting.cell, setting.note] for name, setting in found.items())
    return rows([peer, "agentrl", "not the same"], cells)


def page(peer: str, text: str) -> str:
    """`text` of the page of `peer` with its table as it is to be."""
    return filled(text, {"settings": partial(settings, peer)})


def pages() -> dict[Path, Callable[[str], str]]:
    """What is made of each page."""
    return {DOCS / f"from-{peer.lower()}.md": partial(page, peer) for peer in peers.settings()}


if __name__ == "__main__":
    raise SystemExit(write_pages(pages()))
