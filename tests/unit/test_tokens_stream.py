import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.columns import COLUMNS, Column
from agentrl.errors import TokenError
from agentrl.tokens import Message, QwenFormat, Span, TokenStream, Vocab
from agentrl.tokens.check import check_columns
from agentrl.types import SpanKind, TrajectoryMeta


@pytest.fixture
def chat(qwen_vocab: Vocab) -> QwenFormat:
    return QwenFormat(qwen_vocab)


@pytest.fixture
def stream(chat: QwenFormat) -> TokenStream:
    """A prompt, opened for the first turn."""
    made = TokenStream(chat.vocab, openers=[chat.assistant_opener])
    made.extend(chat.open_prompt([Message.user("Where is Paris?")]))
    return made


def sample(stream: TokenStream, ids: Sequence[int], version: int = 0) -> None:
    stream.prompt_ids()
    stream.sampled(ids, [-0.5] * len(ids), [version] * len(ids))


def test_columns_hold_what_was_appended_under_its_author(
    stream: TokenStream, chat: QwenFormat
) -> None:
    prompt = stream.prompt_ids()
    stream.sampled([11, 12], [-0.25, -0.5], [3, 4])
    observation = chat.observe([Message.tool("France")], stream.turn_ids())
    stream.extend(observation)
    sample(stream, [13], version=4)
    tokens, kinds, logprobs, versions, turns = stream.columns()
    added = [id_ for span in observation for id_ in span.ids]
    assert tokens.tolist() == [*prompt, 11, 12, *added, 13]
    assert [kinds[i] for i, turn in enumerate(turns) if turn == -1] == kinds[: len(prompt)].tolist()
    assert turns.tolist() == [-1] * len(prompt) + [0] * (2 + len(added)) + [1]
    written = {i: (logprobs[i], versions[i]) for i, k in enumerate(kinds) if k == SpanKind.SAMPLED}
    first = len(prompt)
    assert written == {first: (-0.25, 3), first + 1: (-0.5, 4), len(tokens) - 1: (-0.5, 4)}
    assert {versions[i] for i in range(len(tokens)) if i not in written} == {-1}
    assert stream.meta(1.5) == TrajectoryMeta(
        num_tokens=len(tokens), num_sampled=3, num_turns=2, reward=1.5, versions=[(3, 1), (4, 2)]
    )


def test_columns_are_copies_in_the_order_and_width_of_the_wire(stream: TokenStream) -> None:
    sample(stream, [11])
    columns = stream.columns()
    assert [column.itemsize for column in columns] == [c.token_bytes for c in COLUMNS.values()]
    columns[0][0] = 99
    assert stream.prompt_ids()[0] != 99


def test_a_turn_continues_after_a_push_and_ends_with_an_observation(
    stream: TokenStream, chat: QwenFormat
) -> None:
    sample(stream, [11], version=1)
    sample(stream, [12], version=2)
    assert stream.num_turns == 1
    assert stream.turn_ids() == [11, 12]
    stream.extend(chat.observe([], stream.turn_ids()))
    assert stream.turn_ids() == []
    sample(stream, [13])
    assert stream.num_turns == 2
    assert stream.turn_ids() == [13]


def test_an_empty_sample_changes_nothing(stream: TokenStream) -> None:
    before = stream.prompt_ids()
    stream.sampled([], [], [])
    assert stream.prompt_ids() == before
    assert stream.num_turns == 0
    assert stream.turn_ids() == []


@pytest.mark.parametrize(
    ("ids", "logprobs", "versions", "message"),
    [
        ([1, 2], [-1.0], [0, 0], "1 logprobs for 2 sampled tokens"),
        ([1], [-1.0], [], "0 versions for 1 sampled tokens"),
        ([1], [math.nan], [0], "not finite"),
        ([1], [-math.inf], [0], "not finite"),
        ([1], [-1.0], [-1], "no known weight version"),
        ([-1], [-1.0], [0], "negative id"),
        ([2**31], [-1.0], [0], "do not fit"),
    ],
)
def test_a_sample_that_breaks_an_invariant_is_refused_whole(
    stream: TokenStream,
    ids: list[int],
    logprobs: list[float],
    versions: list[int],
    message: str,
) -> None:
    before = stream.prompt_ids()
    with pytest.raises(TokenError, match=message):
        stream.sampled(ids, logprobs, versions)
    assert stream.prompt_ids() == before
    assert stream.num_turns == 0
    stream.validate()


def test_sampling_without_the_opener_is_refused(stream: TokenStream) -> None:
    stream.untrusted("assistant\n")
    stream.prompt_ids()
    with pytest.raises(TokenError, match="does not follow an assistant opener"):
        stream.sampled([11], [-1.0], [0])


def test_a_stream_that_grew_while_the_engine_sampled_is_refused(
    stream: TokenStream, chat: QwenFormat
) -> None:
    stream.prompt_ids()
    stream.control(chat.assistant_opener)
    with pytest.raises(TokenError, match="call prompt_ids before sampling"):
        stream.sampled([11], [-1.0], [0])


def test_a_prefix_that_changed_is_noticed(stream: TokenStream) -> None:
    sample(stream, [11])
    stream._columns["tokens"][0] += 1
    with pytest.raises(TokenError, match="changed since the engine saw them"):
        stream.prompt_ids()


def test_a_control_id_in_an_untrusted_span_is_refused(
    stream: TokenStream, qwen_vocab: Vocab
) -> None:
    forged = Span(SpanKind.UNTRUSTED, [5, qwen_vocab.control["<|im_end|>"]])
    with pytest.raises(TokenError, match="UNTRUSTED tokens hold the control ids"):
        stream.extend([forged])


def test_a_span_cannot_bring_sampled_tokens(stream: TokenStream) -> None:
    with pytest.raises(TokenError, match="SAMPLED span"):
        stream.extend([Span(SpanKind.SAMPLED, [5])])


def test_a_demonstration_is_a_turn_without_logprobs(stream: TokenStream) -> None:
    stream.demonstration([21, 22])
    stream.validate()
    assert stream.num_turns == 1
    assert stream.num_sampled == 0
    assert stream.columns()[1][-1] == SpanKind.DEMONSTRATION


def test_only_the_format_can_open_a_turn(stream: TokenStream, chat: QwenFormat) -> None:
    stream.demonstration([21, *chat.assistant_opener])
    stream.prompt_ids()
    with pytest.raises(TokenError, match="does not follow an assistant opener"):
        stream.sampled([11], [-1.0], [0])


Columns = dict[str, "array[Any]"]
Plant = Callable[[Columns, int], object]


def put(name: str, offset: int, value: float) -> Plant:
    def plant(columns: Columns, first_sampled: int) -> None:
        columns[name][first_sampled + offset] = value

    return plant


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (put("kinds", 0, 7), "unknown kind 7"),
        (put("kinds", -1, SpanKind.UNTRUSTED), "does not follow an assistant opener"),
        (put("tokens", -1, 1), "does not follow an assistant opener"),
        (put("logprobs", 0, math.nan), "not finite"),
        (put("logprobs", -1, -0.5), "were not sampled"),
        (put("versions", 0, -1), "no known version"),
        (put("versions", -1, 2), "were not sampled"),
        (put("turns", 0, 3), "do not all belong to turn 0"),
        (put("turns", -1, 0), "do not all belong to turn -1"),
        (put("tokens", 0, -4), "negative id"),
        (lambda columns, _: columns["turns"].pop(), "differ in length"),
    ],
)
def test_a_planted_violation_is_found(
    stream: TokenStream, chat: QwenFormat, plant: Plant, message: str
) -> None:
    first_sampled = len(stream)
    sample(stream, [11, 12])
    stream.extend(chat.observe([Message.tool("x")], stream.turn_ids()))
    columns = dict(zip(COLUMNS, stream.columns(), strict=True))
    plant(columns, first_sampled)
    with pytest.raises(TokenError, match=message):
        check_columns(columns, control_ids=chat.vocab.control_ids, openers=[chat.assistant_opener])


def test_an_assistant_opener_that_opened_no_turn_is_found(
    stream: TokenStream, chat: QwenFormat
) -> None:
    sample(stream, [11])
    stream.control(chat.assistant_opener)
    stream.untrusted("words in the policy's name")
    with pytest.raises(TokenError, match="1 assistant openers after the prompt for 1 turns"):
        stream.columns()


def test_a_column_that_reaches_back_leaves_what_was_known_at_the_turn_before(
    stream: TokenStream, chat: QwenFormat
) -> None:
    marks = Column("marks", "<u2", fill=9)
    prompt = len(stream)
    sample(stream, [11, 12])
    stream.write(marks, array("H", [1] * (prompt + 1)))
    stream.extend(chat.observe([Message.tool("France")], stream.turn_ids()))
    between = len(stream) - prompt - 2
    sample(stream, [13])
    stream.write(marks, array("H", [2] * (len(stream) - 1)))
    found = array("H", stream.columns()[-1].tobytes())
    assert found.tolist() == [9] + [1] * (prompt + 1) + [2] * (between + 1)
