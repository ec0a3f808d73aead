"""Where and when the parts of an experiment were measured, and what was remarked on it.

    EXPERIMENT/measured/NAME.json    of a run, or of the model before training: for each part of the
                                     work ("trained", "curve", "scores") machine, commit, beginning

Runs may be measured in parts, on other days and of other commits; each says so for itself. All of
it together names the experiment, so that remarks on one are not printed under another.
"""

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from tables import table

from agentrl.errors import DataError

__all__ = ["Part", "experiment_id", "origins", "read_measured", "remarks"]

TITLE = re.compile(r"# (\d{4}-\d\d-\d\d), experiment ([0-9a-f]+)")


class Part(msgspec.Struct, frozen=True):
    """`began`: when, ISO 8601."""

    machine: str
    commit: str
    began: str


#: Parts of the work by name; empty where nothing was noted.
Parts = dict[str, Part]


def read_measured(experiment: Path, names: Sequence[str]) -> dict[str, Parts]:
    """What was noted of each name. Raises DataError for a note that cannot be read."""
    found: dict[str, Parts] = {}
    for name in names:
        path = experiment / "measured" / f"{name}.json"
        try:
            found[name] = msgspec.json.decode(path.read_bytes(), type=Parts)
        except FileNotFoundError:
            found[name] = {}
        except msgspec.DecodeError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    return found


def experiment_id(measured: Mapping[str, Parts]) -> str:
    """Twelve hexadecimal digits that another measurement does not share."""
    data = msgspec.json.encode(measured, order="sorted")
    return hashlib.sha256(data).hexdigest()[:12]


def origins(measured: Mapping[str, Parts]) -> str:
    """A table of machines and commits, with the names measured alike on one line."""
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, parts in measured.items():
        trained = [part for key, part in parts.items() if key == "trained"]
        scored = [part for key, part in parts.items() if key != "trained"]
        machines = [part.machine for part in (*trained, *scored)]
        commits = ([part.commit for part in half] for half in (trained, scored))
        rows[tuple(map(_together, (machines, *commits)))].append(name)
    head = ["measured", "machine", "commit of the training", "commit of the scoring"]
    return table(head, [[", ".join(names), *cells] for cells, names in rows.items()])


def remarks(path: Path, experiment: str) -> str:
    """A chapter with the remarks in `path`, if they are on this experiment, else nothing.

    The first line is `# YYYY-MM-DD, experiment ID`. Raises DataError when it is not."""
    if not path.exists():
        return ""
    title, _, text = path.read_text(encoding="utf-8").partition("\n")
    match = TITLE.fullmatch(title)
    if match is None:
        raise DataError(f"{path} begins with {title!r}; write `# YYYY-MM-DD, experiment ID`")
    date, of = match.groups()
    if of != experiment:
        print(f"{path} is on experiment {of}, not {experiment}: left out", file=sys.stderr)
        return ""
    return f"## Remarks of {date}\n\n{text.strip()}"


def _together(values: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "-"
