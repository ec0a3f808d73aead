"""`Demonstrations`: episodes that nobody plays, dialogues to be imitated (`sft_loss`).

    messages of the row -> prompt, then [turn -> what answers it]*        the last is a turn

Every assistant message becomes DEMONSTRATION tokens; everything else is context. One whose
`step_loss_mask` is not 1 (as slime's rows say it) is not imitated: its tokens are EXCLUDED. A
dialogue that cannot be written is the outcome `env_error`, one that is too long is `filtered`.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.actors.boundary import Boundary
from agentrl.actors.limits import Limits
from agentrl.actors.player import Attempt
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.writing import Writers
from agentrl.columns import EXCLUDED
from agentrl.config.settings_file import without_nulls
from agentrl.envs.row_tools import tools_of
from agentrl.envs.rows.keys import find
from agentrl.errors import AgentRLError, EnvError, PromptTooLongError, TextTooLongError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ChatFormat, openers_of, resumed_of
from agentrl.tokens.stream import TokenStream
from agentrl.types import EpisodeReport, Outcome, StopReason, Task
from agentrl.visible import message_of

__all__ = ["Demonstrations"]


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any]

    def raw(self) -> bytes:
        """The arguments as the JSON that the model is to write."""
        if isinstance(self.arguments, str):
            return self.arguments.encode()
        return json.dumps(self.arguments, ensure_ascii=False).encode()


class _Call(msgspec.Struct, frozen=True):
    function: _Function
    id: str = ""


class _Said(msgspec.Struct, frozen=True):
    """A message as OpenAI's chat API writes it."""

    role: str
    content: str | None = None
    tool_calls: list[_Call] = []
    tool_call_id: str | None = None
    step_loss_mask: float = 1

    @property
    def num_chars(self) -> int:
        """Of its text and its calls."""
        calls = sum(len(call.function.raw()) for call in self.tool_calls)
        return len(self.content or "") + calls


class Demonstrations:
    """A `Strategy`: writes the dialogue under `key` of a task's row; a row may list its `tools`
    (OpenAI's function-calling schemas), for a chat format that tells the model of them."""

    def __init__(self, chat: ChatFormat, limits: Limits, *, key: str) -> None:
        self._chat = chat
        self._limits = limits
        self._key = key
        self._writers = Writers()

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """See `Strategy`. No engine is asked, and nothing saved."""
        task = attempt.assignment.task
        try:
            said = self._messages(task.row)
            chars = sum(each.num_chars for each in said)
            stream = await self._writers.run(chars, self._written, said, task.row)
        except TextTooLongError as error:
            raise self._too_long(task, str(error)) from error
        except AgentRLError as error:
            raise EnvError(f"the dialogue of task {task.id}: {message_of(error)}") from error
        if len(stream) > self._limits.max_context:
            raise self._too_long(task, f"it has {len(stream)} tokens")
        report = EpisodeReport(
            id=attempt.assignment.id,
            outcome=Outcome.DONE,
            stop_reason=StopReason.TERMINATED,
            trajectories=[stream.meta(0.0)],
            wall_s=attempt.played_s(),
        )
        return PlayedEpisode(report, stream.columns())

    def _too_long(self, task: Task, found: str) -> PromptTooLongError:
        return PromptTooLongError(
            f"the dialogue of task {task.id} is too long: at most {self._limits.max_context} "
            f"tokens fit (--rollout-max-context-len), and {found}"
        )

    def _written(self, said: list[_Said], row: dict[str, Any]) -> TokenStream:
        first = next((i for i, message in enumerate(said) if message.role == "assistant"), None)
        if first is None or said[-1].role != "assistant":
            raise EnvError(f"what is under {self._key!r} does not end with an assistant turn")
        chat = self._chat
        stream = TokenStream(chat.vocab, openers=openers_of(chat), resumed=resumed_of(chat))
        stream.extend(self._chat.open_prompt(_context(said[:first]), tools_of(row)))
        between: list[_Said] = []
        ids: list[int] = []
        for message in said[first:]:
            if message.role != "assistant":
                between.append(message)
                continue
            if ids:
                stream.extend(self._chat.observe(_context(between), ids))
                between = []
            ids = self._chat.write(message.content or "", _calls(message))
            stream.demonstration(ids)
            if message.step_loss_mask != 1:
                stream.write(EXCLUDED, b"\1" * len(ids))
        return stream

    def _messages(self, row: dict[str, Any]) -> list[_Said]:
        try:
            return msgspec.convert(without_nulls(find(row, self._key)), list[_Said])
        except (KeyError, msgspec.ValidationError) as error:
            raise EnvError(
                f"{self._key!r} (--input-key) is no list of chat messages: {error}; the row has "
                f"{sorted(row)}"
            ) from error


def _context(said: Sequence[_Said]) -> list[Message]:
    return [Message(m.role, m.content or "", m.tool_call_id) for m in said]


def _calls(message: _Said) -> list[ToolCall]:
    return [
        ToolCall(call.id, call.function.name, call.function.raw()) for call in message.tool_calls
    ]
