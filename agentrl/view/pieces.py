"""The text of tokens, one by one."""

from collections.abc import Sequence

from agentrl.tokens.vocab import Vocab

__all__ = ["pieces"]

#: A character of UTF-8 that is split over tokens is shown with the last of them.
_MAX_PENDING = 8


def pieces(vocab: Vocab, ids: Sequence[int]) -> list[str]:
    """The text of each of `ids`, not yet `visible`; empty where a later one completes it."""
    found: list[str] = []
    pending: list[int] = []
    for id_ in ids:
        pending.append(id_)
        text = vocab.decode(pending)
        if text.endswith("\ufffd") and len(pending) < _MAX_PENDING:
            found.append("")
            continue
        found.append(text)
        pending.clear()
    if pending:
        found[-1] = vocab.decode(pending)
    return found
