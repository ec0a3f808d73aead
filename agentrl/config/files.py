"""Files that are there whole or as they were: a program may be killed at any moment."""

import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once, on the disk when this returns. Raises OSError; then the
    file is as it was."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
