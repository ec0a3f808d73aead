"""Pages that scripts write in part, and leave the rest to hands."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["cell", "filled", "rows", "write_page", "write_pages"]


def filled(text: str, sections: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """`text` of a page with the lines of each section between its marks, `<!-- NAME -->` and
    `<!-- end of NAME -->`."""
    for name, section in sections.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        lines = "\n".join([begin, *section()]).rstrip() + f"\n{end}"
        found = re.findall(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
        if len(found) != 1:
            raise SystemExit(f"{begin} ... {end} stands on the page {len(found)} times, not once")
        text = text.replace(found[0], lines)
    return text


def rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    for row in (head, ["---"] * len(head), *cells):
        yield re.sub(" +", " ", f"| {' | '.join(row)} |")


def cell(text: str) -> str:
    """`text` in a cell of a table, its flags as code; what is code already stays as it is."""
    flags_set = re.sub(
        r"`[^`]*`|(?<![\w-])(--[a-z][\w-]*)", lambda m: f"`{m[1]}`" if m[1] else m[0], text
    )
    return flags_set.replace("|", "\\|")


def write_pages(pages: Mapping[Path, Callable[[str], str]]) -> int:
    """Write what is made of the text of each page; under `--check` only look whether it is there.
    Returns the exit code."""
    names = ", ".join(place.name for place in pages)
    parser = argparse.ArgumentParser(description=f"Write {names}.")
    parser.add_argument("--check", action="store_true", help="exit 1 if a page is another one")
    only_looks = parser.parse_args().check
    made = {place: make(place.read_text()) for place, make in pages.items()}
    stale = [place for place, text in made.items() if place.read_text() != text]
    if only_looks:
        for place in stale:
            print(f"{place.name} is stale; run it without --check")
        return int(bool(stale))
    for place in stale:
        place.write_text(made[place])
    return 0


def write_page(place: Path, made: Callable[[str], str]) -> int:
    """As `write_pages`, of one page."""
    return write_pages({place: made})
