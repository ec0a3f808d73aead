"""The table of slime's user files in `docs/from-slime.md`, from their records."""

from collections.abc import Iterator
from pathlib import Path

from scripts.slime_files.records import UPSTREAM, Record, names, open_record

__all__ = ["user_files"]


def user_files() -> Iterator[str]:
    """One line for each example."""
    yield "| file | edited lines | episodes | requests | of what | what differs |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in names():
        record = open_record(name)
        cases = "; ".join(case.name for case in record.cases)
        cells = (_main(record), len(record.edits), len(record.cases), _requests(record), cases)
        yield f"| {' | '.join(map(str, cells))} | {record.differs or '-'} |"


def _main(record: Record) -> str:
    """The file that a script names, linked, and how many others were run with it."""
    flags = dict(zip(record.flags, record.flags[1:], strict=False))
    place = flags.get("--custom-generate-function-path") or flags["--custom-rm-path"]
    module = place.rpartition(".")[0].rpartition(".")[2]
    path = next(file.path for file in record.files if Path(file.path).stem == module)
    link = f"[{path}]({UPSTREAM}/blob/{record.commit}/{path})"
    others = len(record.files) - 1
    return f"{link} and {others} beside it" if others else link


def _requests(record: Record) -> int:
    """Turns of the engine, and requests to others."""
    return sum(len(case.turns) + len(case.outside) for case in record.cases)
