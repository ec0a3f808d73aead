"""`DemonstrationPlayer`: an episode that nobody plays, a dialogue to be imitated (`sft_loss`).

    messages of the row -> prompt, then [turn -> what answers it]*        the last is a turn

Every assistant message becomes DEMONSTRATION tokens; everything else is context. A dialogue that
cannot be written is the outcome `env_error`, one that is too long is `filtered`.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentrl.actors.boundary import describe
from agentrl.actors.failures import outcome_of_failure
from agentrl.actors.limits import Limits
from agentrl.actors.report import PlayedEpisode, failed_episode, require_sendable
from agentrl.actors.snapshots import Save
from agentrl.actors.writing import Writers
from agentrl.errors import AgentRLError, EnvError, PromptTooLongError, TextTooLongError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.stream import TokenStream
from agentrl.types import EpisodeAssignment, EpisodeReport, Outcome, StopReason, Task, TurnClient

__all__ = ["DemonstrationPlayer"]


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

    @property
    def num_chars(self) -> int:
        """Of its text and its calls."""
        calls = sum(len(call.function.raw()) for call in self.tool_calls)
        return len(self.content or "") + calls


class DemonstrationPlayer:
    """Writes the dialogue under `key` of a task's row; a row may list its `tools` (OpenAI's
    function-calling schemas), for a chat format that tells the model of them."""

    def __init__(
        self,
        chat: ChatFormat,
        limits: Limits,
        *,
        key: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chat = chat
        self._limits = limits
        self._key = key
        self._now = now
        self._writers = Writers()

    async def play(
        self,
        assignment: EpisodeAssignment,
        client: TurnClient,
        saved: bytes | None = None,
        save: Save | None = None,
    ) -> PlayedEpisode:
        """The episode's report and tokens. No engine is asked, and nothing saved."""
        del client, saved, save
        started = self._now()
        try:
            said = self._messages(assignment.task.row)
            chars = sum(each.num_chars for each in said)
            stream = await self._writers.run(chars, self._write, said, assignment.task)
        except AgentRLError as failure:
            error = f"task {assignment.task.id}: {describe(failure)}"
            outcome = outcome_of_failure(failure)
            return failed_episode(assignment, outcome, error, self._now() - started)
        report = EpisodeReport(
            id=assignment.id,
            outcome=Outcome.DONE,
            stop_reason=StopReason.TERMINATED,
            trajectories=[stream.meta(0.0)],
            wall_s=self._now() - started,
        )
        played = PlayedEpisode(report, stream.columns())
        require_sendable(played)
        return played

    def _write(self, said: list[_Said], task: Task) -> TokenStream:
        try:
            stream = self._written(said, task.row)
        except TextTooLongError as error:
            raise self._too_long(str(error)) from error
        if len(stream) > self._limits.max_context:
            raise self._too_long(f"it has {len(stream)} tokens")
        return stream

    def _too_long(self, found: str) -> PromptTooLongError:
        return PromptTooLongError(
            f"the dialogue is too long: at most {self._limits.max_context} tokens fit "
            f"(--rollout-max-context-len), and {found}"
        )

    def _written(self, said: list[_Said], row: dict[str, Any]) -> TokenStream:
        first = next((i for i, message in enumerate(said) if message.role == "assistant"), None)
        if first is None or said[-1].role != "assistant":
            raise EnvError(f"the dialogue under {self._key!r} does not end with an assistant turn")
        stream = TokenStream(self._chat.vocab, opener=self._chat.assistant_opener)
        stream.extend(self._chat.open_prompt(_context(said[:first]), row.get("tools") or ()))
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
        return stream

    def _messages(self, row: dict[str, Any]) -> list[_Said]:
        try:
            return msgspec.convert(row.get(self._key), list[_Said])
        except msgspec.ValidationError as error:
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
