"""How deep a row may be nested: what is copied, sent and stored of it recurses at every level."""

from agentrl.errors import DataError

__all__ = ["MAX_DEPTH", "require_shallow"]

#: Lists and objects within one another; JSON that people write has a handful.
MAX_DEPTH = 64


def require_shallow(row: object, whose: str) -> None:
    """Raise DataError for a row that is nested deeper than MAX_DEPTH; `whose` names it."""
    level: list[object] = [row]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list | tuple)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise DataError(
        f"{whose} is nested more than {MAX_DEPTH} levels deep; write what is inside as a string"
    )
