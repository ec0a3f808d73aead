"""Whatever is said and sampled, a stream keeps its invariants and a turn can be read."""

import math
import unicodedata
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentrl.columns import COLUMNS
from agentrl.errors import TokenError
from agentrl.tokens import Message, QwenFormat, TokenStream, Vocab
from agentrl.tokens.check import check_columns
from agentrl.types import SpanKind

pytestmark = pytest.mark.slow

#: Text that is dense in what matters: control tokens, their halves, JSON, odd characters.
FRAGMENTS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>",
    "</think>", "<tool_response>", "</tool_response>", "<|im_", "start|>", "assistant\n", "{", "}",
    '{"name": "search", "arguments": {"query": "x"}}', '"', "\\", "\n", "\n\n", " ", ".", "\0",
    "\u200b", "e\u0301", "\ufeff", "漢", "😀", "\ud800", "＜|im_start|＞",
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=12).map("".join)
foreign_roles = st.sampled_from(["user", "tool"])
observations = st.lists(st.builds(Message, foreign_roles, hostile), max_size=3)


def readable(text: str) -> str:
    """`text` without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode()


@settings(deadline=None)
@given(text=hostile)
def test_untrusted_text_never_makes_a_control_id_and_decodes_back(
    qwen_vocab: Vocab, text: str
) -> None:
    ids = qwen_vocab.encode_untrusted(text)
    assert not qwen_vocab.control_ids & set(ids)
    assert qwen_vocab.decode(ids) == unicodedata.normalize("NFC", readable(text))


@settings(deadline=None)
@given(data=st.data())
def test_any_sampled_ids_parse_without_an_exception(qwen_vocab: Vocab, data: st.DataObject) -> None:
    chat = QwenFormat(qwen_vocab)
    anything = st.lists(st.integers(0, 720), max_size=40)
    dense = hostile.map(readable).map(qwen_vocab.encode_trusted)
    sampled = data.draw(anything | dense)
    turn = chat.parse(sampled, index=3)
    assert turn.parse_error is None or not turn.tool_calls
    openers = sampled.count(qwen_vocab.control["<tool_call>"])
    assert len(turn.tool_calls) <= openers
    if turn.tool_calls:
        assert chat.parse(sampled, index=3) == turn
        assert [call.id for call in turn.tool_calls] == [
            f"call_3_{i}" for i in range(len(turn.tool_calls))
        ]


@settings(deadline=None)
@given(
    name=st.text(max_size=10),
    arguments=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    before=st.text(max_size=10).filter(lambda text: "<" not in text),
)
def test_a_well_formed_call_is_read_back_byte_for_byte(
    qwen_vocab: Vocab, name: str, arguments: object, before: str
) -> None:
    raw = msgspec.json.encode(arguments)
    body = b'{"name": %b, "arguments": %b}' % (msgspec.json.encode(name), raw)
    control = qwen_vocab.control
    said = qwen_vocab.encode_untrusted(before)
    written = qwen_vocab.encode_untrusted(f"\n{body.decode()}\n")
    ids = [*said, control["<tool_call>"], *written, control["</tool_call>"], control["<|im_end|>"]]
    turn = QwenFormat(qwen_vocab).parse(ids)
    assert turn.parse_error is None
    (call,) = turn.tool_calls
    normal = qwen_vocab.decode(qwen_vocab.encode_untrusted(raw.decode()))
    assert call.arguments == normal.encode()


class StreamMachine(RuleBasedStateMachine):
    """Random episodes against a model: a plain list of (token, kind, logprob, version, turn)."""

    vocab: Vocab

    def __init__(self) -> None:
        super().__init__()
        self.chat = QwenFormat(self.vocab)
        self.stream = TokenStream(self.vocab, openers=[self.chat.assistant_opener])
        self.model: list[tuple[int, int, float, int, int]] = []
        self.turn = -1
        self.is_open = False

    def follow(self, spans: Any) -> None:
        self.stream.extend(spans)
        for span in spans:
            self.model += [(id_, int(span.kind), 0.0, -1, self.turn) for id_ in span.ids]
        self.is_open = True

    @initialize(system=st.none() | hostile, question=hostile)
    def reset(self, system: str | None, question: str) -> None:
        messages = [] if system is None else [Message.system(system)]
        self.follow(self.chat.open_prompt([*messages, Message.user(question)]))

    @rule(
        samples=st.lists(
            st.tuples(st.integers(0, 720), st.integers(-64, 0).map(lambda n: n / 8)),
            min_size=1,
            max_size=8,
        ),
        version=st.integers(0, 5),
    )
    def sample(self, samples: list[tuple[int, float]], version: int) -> None:
        assert self.stream.prompt_ids() == [row[0] for row in self.model]
        ids = [id_ for id_, _ in samples]
        logprobs = [logprob for _, logprob in samples]
        self.stream.sampled(ids, logprobs, [version] * len(ids))
        self.turn += self.is_open
        self.is_open = False
        kind = int(SpanKind.SAMPLED)
        self.model += [(id_, kind, logprob, version, self.turn) for id_, logprob in samples]

    @precondition(lambda self: not self.is_open)
    @rule(messages=observations)
    def observe(self, messages: list[Message]) -> None:
        self.follow(self.chat.observe(messages, self.stream.turn_ids()))

    @rule(bad=st.sampled_from([math.nan, math.inf]))
    def refuse(self, bad: float) -> None:
        self.stream.prompt_ids()
        try:
            self.stream.sampled([1], [bad], [0])
        except TokenError:
            return
        raise AssertionError("a logprob that is not finite was taken")

    @invariant()
    def columns_equal_the_model(self) -> None:
        columns = self.stream.columns()
        assert list(zip(*columns, strict=True)) == self.model
        sampled = [row for row in self.model if row[1] == SpanKind.SAMPLED]
        meta = self.stream.meta(0.0)
        assert meta.num_sampled == len(sampled) == sum(count for _, count in meta.versions)
        assert meta.num_turns == self.turn + 1

    @invariant()
    def no_untrusted_token_is_a_control_token(self) -> None:
        foreign = {row[0] for row in self.model if row[1] == SpanKind.UNTRUSTED}
        assert not foreign & self.vocab.control_ids


def test_random_episodes_keep_the_invariants(qwen_vocab: Vocab) -> None:
    machine = type("Machine", (StreamMachine,), {"vocab": qwen_vocab})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=20, deadline=None)
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_planted_violation_is_always_found(qwen_vocab: Vocab, data: st.DataObject) -> None:
    chat = QwenFormat(qwen_vocab)
    stream = TokenStream(qwen_vocab, openers=[chat.assistant_opener])
    stream.extend(chat.open_prompt([Message.user("Why?")]))
    for turn in range(data.draw(st.integers(1, 3))):
        stream.prompt_ids()
        stream.sampled([5, 6], [-0.5, -0.25], [turn, turn])
        stream.extend(chat.observe([Message.tool("because")], stream.turn_ids()))
    columns: dict[str, array[Any]] = dict(zip(COLUMNS, stream.columns(), strict=True))
    at = data.draw(st.integers(0, len(stream) - 1))
    kind = SpanKind(columns["kinds"][at])
    control = data.draw(st.sampled_from(sorted(qwen_vocab.control_ids)))
    plants: list[tuple[str, float]] = [("turns", columns["turns"][at] + 1), ("kinds", 9)]
    if kind is SpanKind.SAMPLED:
        plants += [("versions", -1), ("logprobs", math.nan), ("kinds", SpanKind.UNTRUSTED)]
    else:
        plants += [("versions", 0), ("logprobs", -0.5), ("kinds", SpanKind.SAMPLED)]
    if kind is SpanKind.UNTRUSTED:
        plants += [("tokens", control)]
    name, value = data.draw(st.sampled_from(plants))
    columns[name][at] = value
    assert set(columns) == set(COLUMNS)
    try:
        check_columns(columns, control_ids=qwen_vocab.control_ids, openers=[chat.assistant_opener])
    except TokenError:
        return
    raise AssertionError(f"{name}[{at}] = {value} on a {kind.name} token was not noticed")
