"""A launch script as a file: its text, and the place of what is wrong with it.

Refused: a file that cannot be read, is no text in UTF-8 or has more than `MAX_BYTES`.
"""

import re
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["MAX_BYTES", "placed", "text_of"]

MAX_BYTES = 256 * 1024


def text_of(path: Path) -> str:
    """The text of a script. Raises ConfigError."""
    if (kind := kind_of(path)) != "a file":
        raise ConfigError(f"{path} is {kind}, not a script")
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ConfigError(f"{path} has {size} bytes; a launch script has at most {MAX_BYTES}")
        data = path.read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line} is no text in UTF-8: byte {data[error.start]:#x}; save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if "\0" in text:
        raise ConfigError(f"{path} is no text: it holds a NUL byte")
    if text.startswith("\ufeff"):
        raise ConfigError(
            f"{path} begins with a byte order mark, which a shell takes for part of a word; save "
            "it without"
        )
    return text


def placed(path: Path, text: str, line: int) -> str:
    """An error with its file, as `FILE:LINE: ...`."""
    if found := re.match(r"line (\d+): ", text):
        return f"{path}:{found[1]}: {text[found.end() :]}"
    return text if str(path) in text or "/" in text else f"{path}:{line}: {text}"
