"""All rows of a ledger at one moment, while a buffer may be writing it.

The buffer lets nobody else into its ledger, so a copy is read: first `ledger.db`, then its log.
They belong together as long as the log was not begun anew in between, which its header tells: what
the buffer has moved from the log to `ledger.db` meanwhile is in the copied log as well, and goes
over what may be torn. A torn end of the log fails its checksums and is left out, as after a crash.
"""

import shutil
import tempfile
from pathlib import Path

from agentrl.buffer.ledger import LedgerReader, refuse_waiting
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.wal import read_damage
from agentrl.errors import EnvironmentSetupError, StoreError

__all__ = ["read_moment"]

#: The log is begun anew once in some megabytes of writes: one try is almost always enough.
_TRIES = 20
#: Its salts change whenever it is begun anew.
_HEADER_BYTES = 32


def read_moment(path: Path) -> LedgerState:
    """Every row that was committed when it was read; no byte of the ledger is changed.

    Raises StoreError (no ledger, another schema, damage) or EnvironmentSetupError when the ledger
    grows faster than it can be copied, or there is no room for the copy.
    """
    refuse_waiting(path)
    for _ in range(_TRIES):
        if _header(_log(path)) is None:  # nobody has it open
            with LedgerReader(path) as ledger:
                return ledger.load_all()
        if (state := _copied(path)) is not None:
            return state
    raise EnvironmentSetupError(
        f"{path} is written faster than it can be copied: try again, or when the run has ended"
    )


def _copied(path: Path) -> LedgerState | None:
    """What a copy holds; None when it may be torn."""
    try:
        with tempfile.TemporaryDirectory(prefix="agentrl-ledger-") as folder:
            copy = Path(folder) / path.name
            if not _copy(path, copy):
                return None
            damage = read_damage(copy)
            if damage is not None and damage != read_damage(path):  # it was written meanwhile
                return None
            try:
                with LedgerReader(copy) as ledger:
                    return ledger.load_all()
            except StoreError as error:
                raise StoreError(str(error).replace(folder, str(path.parent))) from error
    except OSError as error:
        raise EnvironmentSetupError(
            f"{path} is in use, or its run was killed, and it cannot be copied to "
            f"{tempfile.gettempdir()}: {error.strerror}"
        ) from error


def _copy(path: Path, copy: Path) -> bool:
    """Copy a ledger and its log; whether they belong together."""
    log = _log(path)
    before = _header(log)
    shutil.copyfile(path, copy)
    try:
        shutil.copyfile(log, _log(copy))
    except FileNotFoundError:  # its run has just ended
        return False
    return _header(log) == before


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _header(log: Path) -> bytes | None:
    """The first bytes of the log, fewer than that of an empty one; None when there is none."""
    try:
        with log.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return None
