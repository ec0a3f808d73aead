"""Texts that are certainly too long are known by their characters."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import TextTooLongError
from agentrl.tokens import Vocab
from agentrl.tokens.capacity import max_chars

#: Letters, and marks that normalization joins with them.
MARKS = "\u0300\u0301\u0313\u0345\u0308\u1100\u1161\u11a8"
TEXTS = st.text(st.sampled_from("ae\u03b1 \nu\u00e9\u6f22\U0001f600" + MARKS))


def test_no_token_stands_for_more_characters_than_the_bound(qwen_tokenizer_json: str) -> None:
    vocab = Vocab(qwen_tokenizer_json)
    width = max_chars(json.loads(qwen_tokenizer_json))
    assert width is not None

    @given(TEXTS)
    def check(text: str) -> None:
        assert len(text) <= width * len(vocab.encode_untrusted(text))
        assert len(text) <= width * len(vocab.encode_trusted(text))

    check()
    assert len(unicodedata.normalize("NFC", "α\u0313\u0300\u0345")) == 1
    longest = max(json.loads(qwen_tokenizer_json)["model"]["vocab"], key=len)
    assert width == 4 * max(len(longest), len("</tool_response>"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
        lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
        lambda d: d["pre_tokenizer"]["pretokenizers"].append({"type": "Whitespace"}),
        lambda d: d.update(pre_tokenizer=None),
        lambda d: d["model"]["vocab"].pop("Ā"),
        lambda d: d["model"].update(fuse_unk=True),
    ],
)
def test_where_text_may_vanish_no_bound_is_known(
    qwen_tokenizer_json: str, edit: Callable[[dict[str, Any]], object]
) -> None:
    description = json.loads(qwen_tokenizer_json)
    edit(description)
    assert max_chars(description) is None


def test_what_is_certainly_too_long_is_refused_unread_and_the_rest_by_its_tokens(
    qwen_tokenizer_json: str,
) -> None:
    vocab = Vocab(qwen_tokenizer_json, max_tokens=100)
    width = max_chars(json.loads(qwen_tokenizer_json))
    assert width is not None
    for encode in (vocab.encode_untrusted, vocab.encode_trusted):
        with pytest.raises(
            TextTooLongError, match=f"has {100 * width + 1} characters, more than 100 "
        ):
            encode("x" * (100 * width + 1))
        with pytest.raises(TextTooLongError, match=r"has \d+ tokens, more than 100"):
            encode("xyz " * 100)
        assert len(encode("x" * 50)) <= 100
