"""How many characters one token can stand for, read from the description of a tokenizer.

A text of more than `tokens * max_chars(...)` characters is more than `tokens` tokens, and that is
known without encoding it. It holds for byte-level BPE, where a word of the vocabulary has at least
as many letters as it stands for characters, and of which nothing is dropped on the way. Canonical
normalization may join characters, at most _JOINED to one (Unicode Standard Annex 15, section 12).
Of any other tokenizer no such number is known.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import pre_tokenizers

__all__ = ["max_chars"]

#: Characters that canonical composition makes one of, at most.
_JOINED = 4
_JOINS = {"NFC": _JOINED, "NFKC": _JOINED, "NFD": 1, "NFKD": 1}
_KEEPS = {"ByteLevel", "Split", "Digits", "Punctuation"}


def max_chars(description: Mapping[str, Any]) -> int | None:
    """Characters of the longest token; None where text may vanish."""
    model = description["model"]
    normalizers = [step["type"] for step in _steps(description.get("normalizer"), "normalizers")]
    splitters = list(_steps(description.get("pre_tokenizer"), "pretokenizers"))
    kinds = {step["type"] for step in splitters}
    removes = any(step.get("behavior") == "Removed" for step in splitters)
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    is_whole = letters <= model["vocab"].keys() and not model.get("fuse_unk")
    if removes or not is_whole or "ByteLevel" not in kinds or not kinds <= _KEEPS:
        return None
    if not _JOINS.keys() >= set(normalizers):
        return None
    added = [len(str(token["content"])) for token in description.get("added_tokens", ())]
    longest = max([*map(len, model["vocab"]), *added])
    return longest * max([1, *(_JOINS[kind] for kind in normalizers)])


def _steps(part: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for step in part[inner]:
        yield from _steps(step, inner)
