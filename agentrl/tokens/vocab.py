"""`Vocab`: a Hugging Face `tokenizer.json` with two doors, for trusted and for untrusted text.

A control id is the id of any added token (`<|im_start|>`, `<tool_call>`, ...). Untrusted text is
encoded by a clone that has no added tokens, so no text can become a control id, whatever it says.

Refused: a tokenizer without the control tokens that its chat format needs; one that is not BPE
(other models may hold control tokens as ordinary words); one that writes a prefix before each piece
of text, for pieces are encoded apart. A text that is certainly too long is refused unread.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from agentrl.errors import ConfigError, TextTooLongError, TokenError
from agentrl.tokens.capacity import max_chars

__all__ = ["PlainEncoding", "Vocab"]


class PlainEncoding(NamedTuple):
    """Ids of untrusted text and, for each, the half-open range of characters that it came from."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Vocab:
    """Ids of a tokenizer: `control` maps the text of each control token to its id. A text of more
    than `max_tokens` tokens is a TextTooLongError, if possible before it is encoded."""

    def __init__(
        self, tokenizer_json: str, *, source: str = "tokenizer", max_tokens: int | None = None
    ) -> None:
        self.source = source
        description = _parse(tokenizer_json, source)
        added = {str(token["content"]): int(token["id"]) for token in description["added_tokens"]}
        self.control: Mapping[str, int] = MappingProxyType(added)
        self.control_ids = frozenset(added.values())
        self._max_tokens = max_tokens
        self._max_chars = max_chars(description)
        self._trusted = _build(description, source)
        self._untrusted = _build(_without_control(description, added), source)
        if self.decode(self.encode_untrusted("a") * 2) != "aa":
            raise ConfigError(
                f"{source} adds a prefix to each text; agentrl encodes piece by piece"
            )

    @classmethod
    def from_file(cls, path: str | Path, *, max_tokens: int | None = None) -> "Vocab":
        """From a `tokenizer.json`, or from a model directory that holds one."""
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        return cls(text, source=str(path), max_tokens=max_tokens)

    def require(self, needed: Iterable[str], *, by: str) -> None:
        """Raise `ConfigError`, naming every token of `needed` that is no control token here."""
        if missing := sorted(set(needed) - self.control.keys()):
            raise ConfigError(
                f"{self.source} lacks the control tokens {', '.join(missing)} that {by} needs; "
                "add them to the tokenizer, or choose another chat format"
            )

    @functools.cached_property
    def size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self._trusted.get_vocab(with_added_tokens=True).values())

    def ids(self) -> dict[str, int]:
        """The id of every word, as the tokenizer writes words; control tokens too."""
        words: dict[str, int] = self._trusted.get_vocab(with_added_tokens=True)
        return words

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of the framework's own text; the text of a control token becomes its id."""
        ids: list[int] = self._encode(self._trusted, text).ids
        return ids

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of any text; never a control id. A lone surrogate is read as `?`."""
        return self.encode_plain(text).ids

    def encode_plain(self, text: str) -> PlainEncoding:
        """`encode_untrusted` with the characters of each id."""
        encoding = self._encode(self._untrusted, _valid(text))
        if not self.control_ids.isdisjoint(encoding.ids):
            raise TokenError(f"{self.source} made a control token of untrusted text; nothing sent")
        return PlainEncoding(encoding.ids, encoding.offsets)

    def normalized(self, text: str) -> str:
        """Any text as the tokenizer reads it, before it is cut into tokens."""
        normalizer = self._untrusted.normalizer
        text = _valid(text)
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of `ids`, control tokens by their own text (those that are special left out under
        `skip_special`); broken UTF-8 becomes U+FFFD."""
        text: str = self._trusted.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def _encode(self, tokenizer: Tokenizer, text: str) -> Encoding:
        most, width = self._max_tokens, self._max_chars
        if most is not None and width is not None and len(text) > most * width:
            raise TextTooLongError(
                f"a text has {len(text)} characters, more than {most} tokens can hold "
                f"({most * width})"
            )
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if most is not None and len(encoding) > most:
            raise TextTooLongError(f"a text has {len(encoding)} tokens, more than {most}")
        return encoding


def _valid(text: str) -> str:
    """A lone surrogate is read as `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _parse(tokenizer_json: str, source: str) -> dict[str, Any]:
    try:
        description = json.loads(tokenizer_json)
        kind = description["model"].get("type", "BPE")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source} is not a tokenizer.json: {error}") from error
    if kind != "BPE" or "merges" not in description["model"]:
        raise ConfigError(f"{source} is a {kind} tokenizer; agentrl needs BPE")
    # A file may ask for cut or padded encodings, which would lose or invent tokens.
    return {"added_tokens": [], **description, "truncation": None, "padding": None}


def _without_control(description: dict[str, Any], added: Mapping[str, int]) -> dict[str, Any]:
    """The clone. Control tokens leave the model's words and merges too, where text could reach
    them; the post-processor goes because it may trim offsets."""
    model = dict(description["model"])
    model["vocab"] = {word: id_ for word, id_ in model["vocab"].items() if word not in added}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    model["merges"] = [pair for pair in pairs if added.keys().isdisjoint([*pair, "".join(pair)])]
    if model.get("unk_token") in added:
        model["unk_token"] = None
    return {**description, "added_tokens": [], "post_processor": None, "model": model}


def _build(description: dict[str, Any], source: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(description))
    # The binding raises plain Exception for whatever it cannot read.
    except Exception as error:
        raise ConfigError(f"{source} cannot be loaded as a tokenizer: {error}") from error
