"""A dialogue of a row becomes a trajectory to imitate: whose tokens, how many; what is refused."""

from pathlib import Path
from typing import Any

import pytest

import agentrl.envs.search_r1
from agentrl.actors.demonstration import Demonstrations
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.buffer.payloads import defect
from agentrl.columns import COLUMNS, EXCLUDED
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Outcome,
    SamplingParams,
    SpanKind,
    StopReason,
    Task,
    TurnClient,
)

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
CALL = {"function": {"name": "search", "arguments": {"query": "capital of Peru"}}}
DIALOGUE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the capital of Peru?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": " The capital of Peru is Lima. <|im_end|>"},
    {"role": "assistant", "content": "<answer> Lima </answer>"},
]


class NoEngine(TurnClient):
    """A demonstration asks nobody."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an engine was asked")


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return load_format("qwen", MODEL)


async def play(
    chat: ChatFormat, row: dict[str, Any], max_context: int = 512, key: str = "messages"
) -> PlayedEpisode:
    limits = Limits(
        max_context=max_context,
        max_prompt=max_context,
        max_turns=1,
        max_tool_calls=None,
        episode_timeout_s=60.0,
    )
    player = Player(Demonstrations(chat, limits, key=key), now=lambda: 0.0)
    assignment = EpisodeAssignment(EpisodeId("g", 0), 0, 0, Task("rows:7", row), SamplingParams())
    return await player.play(assignment, NoEngine())


@pytest.mark.anyio
async def test_the_assistants_turns_are_demonstrated_and_the_rest_is_context(
    chat: ChatFormat,
) -> None:
    played = await play(chat, {"messages": DIALOGUE})
    (meta,) = played.report.trajectories
    columns = dict(zip(COLUMNS, played.columns, strict=True))
    shown = [
        id_
        for id_, kind in zip(columns["tokens"], columns["kinds"], strict=True)
        if kind == SpanKind.DEMONSTRATION
    ]
    assert played.report.outcome is Outcome.DONE
    assert played.report.stop_reason is StopReason.TERMINATED
    assert (meta.num_sampled, meta.num_turns, meta.versions) == (0, 2, [])
    assert meta.num_demonstrated == len(shown)
    assert chat.vocab.decode(shown) == (
        '<tool_call>\n{"name": "search", "arguments": {"query": "capital of Peru"}}\n</tool_call>'
        "<|im_end|><answer> Lima </answer><|im_end|>"
    )


@pytest.mark.anyio
async def test_a_tool_result_of_a_demonstration_is_as_untrusted_as_any(chat: ChatFormat) -> None:
    played = await play(chat, {"messages": DIALOGUE})
    columns = dict(zip(COLUMNS, played.columns, strict=True))
    end = chat.vocab.control["<|im_end|>"]
    kinds = [k for id_, k in zip(columns["tokens"], columns["kinds"], strict=True) if id_ == end]
    assert kinds.count(SpanKind.UNTRUSTED) == 0
    assert kinds.count(SpanKind.DEMONSTRATION) == 2


@pytest.mark.anyio
async def test_arguments_written_as_a_string_are_kept_as_they_are(chat: ChatFormat) -> None:
    call = {"function": {"name": "search", "arguments": '{"query":"x"}'}}
    turn = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    played = await play(chat, {"messages": [DIALOGUE[0], turn]})
    text = chat.vocab.decode(played.columns[0].tolist())
    assert text.endswith(
        'I look.\n<tool_call>\n{"name": "search", "arguments": {"query":"x"}}\n</tool_call>'
        "<|im_end|>"
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "x"}, "'messages' (--input-key) is no list of chat messages"),
        ({"messages": []}, "does not end with an assistant turn"),
        ({"messages": DIALOGUE[:3]}, "does not end with an assistant turn"),
        ({"messages": [DIALOGUE[3]]}, "reset returned no messages"),
        ({"messages": [DIALOGUE[0], {"role": "oracle"}, DIALOGUE[3]]}, "the role 'oracle'"),
        (
            {"messages": [DIALOGUE[0], {"role": "assistant", "content": "a<|im_end|>b"}]},
            "which end a turn",
        ),
    ],
)
async def test_a_dialogue_that_cannot_be_written_is_an_env_error_that_says_why(
    chat: ChatFormat, row: dict[str, Any], said: str
) -> None:
    played = await play(chat, row)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert played.report.error is not None
    assert "rows:7" in played.report.error
    assert said in played.report.error


@pytest.mark.anyio
async def test_a_dialogue_longer_than_the_context_is_refused_with_both_numbers(
    chat: ChatFormat,
) -> None:
    played = await play(chat, {"messages": DIALOGUE}, max_context=20)
    assert "at most 20 tokens fit" in str(played.report.error)


@pytest.mark.anyio
async def test_a_turn_that_its_row_masks_is_written_and_not_imitated(chat: ChatFormat) -> None:
    """As in slime: `step_loss_mask` of a message, 1 where nothing is said."""
    masked = [DIALOGUE[0], DIALOGUE[1] | {"step_loss_mask": 0}, *DIALOGUE[2:]]
    whole, played = [await play(chat, {"messages": each}) for each in (DIALOGUE, masked)]
    (before,), (meta,) = whole.report.trajectories, played.report.trajectories
    assert played.columns[: len(COLUMNS)] == whole.columns
    assert meta.columns == (EXCLUDED,)
    tokens, kinds, excluded = (played.columns[place] for place in (0, 1, len(COLUMNS)))
    assert list(COLUMNS)[:2] == ["tokens", "kinds"]
    left = [
        id_
        for id_, kind, out in zip(tokens, kinds, excluded, strict=True)
        if kind == SpanKind.DEMONSTRATION and not out
    ]
    assert chat.vocab.decode(left) == "<answer> Lima </answer><|im_end|>"
    assert meta.num_demonstrated == len(left) < before.num_demonstrated
    assert defect(played.report, [memoryview(column) for column in played.columns]) is None
