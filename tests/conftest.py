"""Fixtures every test may use."""

import json
import os
from functools import cache

import pytest
from hypothesis import settings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from agentrl.tokens import Vocab
from agentrl.tokens.formats.load import format_class
from tests.session import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_to_serializable,
    pytest_xdist_make_scheduler,
)
from tests.slices import DAY, IS_FULL, PART

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_to_serializable",
    "pytest_xdist_make_scheduler",
]

#: A plain ChatML template.
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# A process of pytest-xdist sets its title, which would write over what /proc/PID/environ shows.
os.environ.setdefault("SPT_NOENV", "1")

# Machines differ in speed and are shared: how long an example takes is no property of the code.
settings.register_profile("agentrl", deadline=None, print_blob=True)
settings.load_profile("agentrl")


def pytest_report_header() -> str:
    """Which cases this session plays of the long lists, and how to play them again."""
    slices = "all" if IS_FULL else f"of AGENTRL_TESTS_DAY={DAY}"
    return f"slices: {slices}; part {PART} of the files"


@pytest.fixture
def anyio_backend() -> str:
    """agentrl runs on asyncio (pyzmq and aiohttp need it)."""
    return "asyncio"


def make_tokenizer_json() -> str:
    """A tokenizer of Qwen3's shape, 700 entries: its pre-tokenizer, normalizer and added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    text = [
        'user assistant system {"name": "search", "arguments": {"query": "the capital"}}\n\n',
        "<|im_start|>user tool_call tool_response. think im_end end.\n  You may call.\n\n",
    ]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)  # type: ignore[no-untyped-call]
    tokenizer.train_from_iterator(text * 20, trainer)
    roles = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tags = ["tool_call", "tool_response", "think"]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in roles])
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in marks])
    return json.dumps(json.loads(tokenizer.to_str()))


def tokenizer_json_for(name: str, *, with_tool_tokens: bool = True) -> str:
    """`make_tokenizer_json` with the markers that the chat format `name` needs besides; its own
    `<tool_call>` and the like may be left out."""
    description = json.loads(make_tokenizer_json())
    tokens = [t for t in description["added_tokens"] if t["special"] or with_tool_tokens]
    plain = {t["content"] for t in description["added_tokens"]} - {t["content"] for t in tokens}
    tokenizer = Tokenizer.from_str(json.dumps({**description, "added_tokens": tokens}))
    markers = [text for text in getattr(format_class(name), "MARKERS", ()) if text not in plain]
    missing = [text for text in markers if tokenizer.token_to_id(text) is None]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in missing])
    return json.dumps(json.loads(tokenizer.to_str()))


@cache
def vocab_for(name: str) -> Vocab:
    """A vocabulary that the chat format `name` can be made with."""
    return Vocab(tokenizer_json_for(name), source="test tokenizer")


@pytest.fixture(scope="session")
def qwen_tokenizer_json() -> str:
    """See `make_tokenizer_json`."""
    return make_tokenizer_json()


@pytest.fixture(scope="session")
def qwen_vocab(qwen_tokenizer_json: str) -> Vocab:
    """The vocabulary of `qwen_tokenizer_json`."""
    return Vocab(qwen_tokenizer_json, source="test tokenizer")
