"""Pages that scripts write in part."""

import argparse
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_page"]


def write_page(place: Path, made: Callable[[str], str]) -> int:
    """Write what is `made` of the text at `place`; under `--check` only look whether it is there.
    Returns the exit code."""
    parser = argparse.ArgumentParser(description=f"Write {place.name}.")
    parser.add_argument("--check", action="store_true", help="exit 1 if it is another page")
    before = place.read_text()
    after = made(before)
    if parser.parse_args().check:
        print("up to date" if after == before else "stale; run it without --check")
        return int(after != before)
    place.write_text(after)
    return 0
