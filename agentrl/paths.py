"""What lies at a path: so that a message names it, and nothing waits for ever to open a FIFO."""

import glob
import os
import stat
from pathlib import Path

__all__ = ["kind_of", "matching"]

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(path: Path) -> str:
    """`a file`, `a directory`, `a FIFO`, `a socket`, `a device`; `nothing`, or why it cannot be
    told. Links are followed."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if os.path.lexists(path) else "nothing"
    except NotADirectoryError:
        return "nothing"
    except (OSError, ValueError) as error:  # no right to look, too long, a NUL in it
        return f"out of reach ({getattr(error, 'strerror', None) or error})"
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


def matching(pattern: Path) -> list[Path]:
    """What is there by that pattern (`rows-*.parquet`), in order of names."""
    return sorted(map(Path, glob.glob(str(pattern))))  # noqa: PTH207  an absolute one too
