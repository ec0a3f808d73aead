"""`--resume auto|never|PATH`: which run a program continues, and what may change when it does.

    PATH    that run directory
    auto    --run-id if that run is there, else the newest run in --run-dir that is not complete,
            else a new run
    never   a new run

The run's own config.toml lies under the flags given now. What its ledger was written for must stay.
"""

from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["FIXED", "find_run", "refuse_changes"]

#: Fields that the groups, leases and tasks of a run were made from.
FIXED = (
    "env",
    "env_args",
    "hf_checkpoint",
    "loss_type",
    "n_samples_per_prompt",
    "num_epoch",
    "prompt_data",
    "rollout_batch_size",
    "rollout_seed",
    "rollout_shuffle",
)


class _Summary(msgspec.Struct):
    status: str


def find_run(resume: str, run_dir: str, run_id: str | None) -> Path | None:
    """The run directory to continue, or None for a new run. Raises ConfigError when the one that
    is named cannot be continued."""
    if resume == "never":
        return None
    if resume != "auto":
        path = Path(resume)
        if not _has_begun(path):
            raise ConfigError(
                f"--resume {resume}: there is no config.toml and ledger.db in {path.absolute()}; "
                "name a run directory"
            )
        return path
    if run_id is not None:
        path = Path(run_dir) / run_id
        return path if _has_begun(path) else None
    root = Path(run_dir)
    found = [path for path in root.iterdir() if _is_unfinished(path)] if root.is_dir() else []
    return max(found, key=lambda path: (path / "ledger.db").stat().st_mtime, default=None)


def refuse_changes(before: RunConfig, now: RunConfig, run: Path) -> None:
    """Raise ConfigError when `now` differs from the run's own configuration in what must stay."""
    for name in FIXED:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} {_said(new)}, but {run} was begun with {_said(old)} and its ledger holds "
                "groups of that; leave it out, or start a new run (--load takes the weights along)"
            )


def _said(value: Any) -> str:
    return "is not given" if value is None else str(value)


def _has_begun(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "ledger.db").is_file()


def _is_unfinished(path: Path) -> bool:
    if not _has_begun(path):
        return False
    try:
        data = (path / "summary.json").read_bytes()
        return msgspec.json.decode(data, type=_Summary).status != "complete"
    except (OSError, msgspec.DecodeError):
        return True  # it died before it had anything to say
