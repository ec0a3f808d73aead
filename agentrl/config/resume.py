"""`--resume auto|never|PATH`: which run a program continues.

    PATH    that run directory
    auto    --run-id if that run is there, else the newest run in --run-dir that is neither complete
            nor failed, else a new run; one that only evaluates is continued by another such one
    never   a new run

A run has failed when what it was given or learnt would fail again: bad data, a health check. Only
its own name continues it. One that lost a process or its host has crashed, which ends nothing.

The run's own config.toml lies under the flags given now; `stored.py` says what must stay.
"""

import logging
import os
import tomllib
from pathlib import Path

import msgspec

from agentrl.disk import read_json
from agentrl.errors import ConfigError

__all__ = ["find_run", "has_begun", "refuse_taken"]

_LOG = logging.getLogger(__name__)


class _Summary(msgspec.Struct):
    status: str


def find_run(
    resume: str, run_dir: str, run_id: str | None, *, eval_only: bool = False
) -> Path | None:
    """The run directory to continue, or None for a new run. Raises ConfigError when the one that
    is named cannot be continued."""
    if resume == "never":
        return None
    if resume != "auto":
        path = Path(resume)
        if not has_begun(path):
            raise ConfigError(f"--resume {resume}: {_lacking(path.absolute())}")
        return path
    if run_id is not None:
        path = Path(run_dir) / run_id
        return path if has_begun(path) else None
    root = Path(run_dir)
    begun = [path for path in root.iterdir() if has_begun(path)] if root.is_dir() else []
    kind = [path for path in begun if _only_evaluates(path) == eval_only]
    return _newest_unfinished(kind)


def refuse_taken(place: Path, resume: str) -> None:
    """Raise ConfigError when a run that is to begin at `place` would meet another one there."""
    has_begun = (place / "ledger.db").exists()
    if not os.path.lexists(place) or (resume == "auto" and not has_begun):
        return
    raise ConfigError(
        f"{place} exists; choose another --run-id, or continue it: --resume {place}"
        if has_begun
        else f"{place} exists and ended before it began; begin it: --resume auto with this "
        "--run-id, or choose another"
    )


def _lacking(place: Path) -> str:
    """What `place` lacks to be continued, and what to do."""
    has_settings, has_ledger = ((place / n).is_file() for n in ("config.toml", "ledger.db"))
    if not (has_settings or has_ledger):
        return f"there is no config.toml and no ledger.db in {place}; name a run directory"
    back = f"bring it back from a copy, or take the weights into a new run with --load {place}"
    if has_ledger:
        return f"config.toml is missing in {place}, and with it the run's settings; {back}"
    if any((place / name).is_dir() for name in ("payload", "recovery")):
        return f"ledger.db is missing in {place}, and with it what became of every group; {back}"
    return (
        f"there is no ledger.db in {place}: it ended before it began; --run-dir {place.parent}"
        f" --run-id {place.name} --resume auto begins it"
    )


def has_begun(path: Path) -> bool:
    """Whether a run lies there that may be continued."""
    return (path / "config.toml").is_file() and (path / "ledger.db").is_file()


def _last_written(path: Path) -> float:
    """When the ledger was; between checkpoints only its journal is."""
    files = (path / "ledger.db", path / "ledger.db-wal")
    return max(file.stat().st_mtime for file in files if file.exists())


def _only_evaluates(path: Path) -> bool:
    try:
        return bool(tomllib.loads((path / "config.toml").read_text()).get("eval_only"))
    except (OSError, ValueError):
        return False  # whoever continues it hears what is wrong with the file


def _newest_unfinished(runs: list[Path]) -> Path | None:
    """What is passed over for having failed, somebody may have meant: that is said."""
    failed: list[Path] = []
    unfinished = None
    for run in sorted(runs, key=_last_written, reverse=True):
        status = _status(run)
        if status == "failed":
            failed.append(run)
        elif status != "complete":
            unfinished = run
            break
    if failed:
        _LOG.warning(
            "--resume auto passes over %s: it failed, and as it is it would fail again; mend what "
            "its summary.json says, then --resume %s continues it",
            f"{len(failed)} runs, the newest {failed[0]}" if len(failed) > 1 else failed[0],
            failed[0],
        )
    return unfinished


def _status(path: Path) -> str | None:
    """None when the run died before it had anything to say."""
    summary = read_json(path / "summary.json", _Summary)
    return None if summary is None else summary.status
