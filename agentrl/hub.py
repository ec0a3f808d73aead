"""Models by their names on the Hugging Face hub: from the cache of this host, nothing is fetched.

`HF_HOME`, `HF_HUB_CACHE` and the like say where that is, as for every tool of Hugging Face.
"""

import re
from pathlib import Path

__all__ = ["advice", "cached"]

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def cached(name: str) -> str | None:
    """The folder of the cached model `name`, `org/name`; None where it is no such name, a path
    that is there, or not in the cache."""
    if not _NAME.fullmatch(name) or Path(name).exists():
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def advice(name: str) -> str:
    """How to have `name` in the cache, if it may be a name on the hub."""
    if not _NAME.fullmatch(name):
        return ""
    return f"; a model of that name on the Hugging Face hub comes by `hf download {name}`"
