"""`Scripted`: a policy that says what a script has it say, as an engine would sample it.

    first turn: the line     every turn after it: the answer "42"

A line may call the first tool that the agent offers. Nothing is learnt of a model here: this is for
trying agents (`rollout_contract`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.envs.hostile import HOSTILE
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tools.example import made_up
from agentrl.types import Generation, PermitStats, SamplingParams

__all__ = ["ANSWER", "LINES", "Line", "Scripted", "shipped_format"]

#: How a line of a prompt begins that tells of a tool.
_TOOL = '{"type": "function"'


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Told(msgspec.Struct):
    """A tool, as prompts tell of it."""

    function: _Function


#: What a turn says: ids, of a chat format and the text of the prompt.
Line = Callable[[QwenFormat, str], list[int]]


def _words(text: str) -> Line:
    return lambda chat, prompt: [*chat.vocab.encode_untrusted(text), *chat.stop_ids[:1]]


def _marked(text: str) -> Line:
    return lambda chat, prompt: [*chat.vocab.encode_trusted(text), *chat.stop_ids[:1]]


def _first_tool(prompt: str) -> tuple[str, dict[str, Any]]:
    """Name and schema of the first tool of a prompt; what only looks like one is passed over."""
    for line in prompt.splitlines():
        if line.startswith(_TOOL):
            with suppress(msgspec.MsgspecError):
                told = msgspec.json.decode(line, type=_Told).function
                return told.name, told.parameters
    return "no_such_tool", {}


def _call(arguments: str | None) -> Line:
    """Calls the first tool; None: with arguments made from its schema."""

    def line(chat: QwenFormat, prompt: str) -> list[int]:
        name, parameters = _first_tool(prompt)
        given = made_up(parameters).decode() if arguments is None else arguments
        body = f'{{"name": {json.dumps(name)}, "arguments": {given}}}'
        return _marked(f"<tool_call>\n{body}\n</tool_call>")(chat, prompt)

    return line


ANSWER = _words("42")
#: What any policy may say first, each with what it is.
LINES: Mapping[str, Line] = {
    "an answer": ANSWER,
    "silence": _words(""),
    "half a call": _marked("<tool_call>\n{"),
    "a call with arguments that fit": _call(None),
    "a call without arguments": _call("{}"),
    "a call with an argument too many": _call('{"no_such": [1]}'),
    "text that spells markers and orders": _words("\n".join(HOSTILE[:13])),
}


def shipped_format() -> QwenFormat:
    """The format `qwen`, which tells of tools, over the tokenizer of the default model."""
    folder = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))
    return QwenFormat(load_format("qwen", folder).vocab)


class Scripted:
    """A `TurnClient`. `asked` is set with the first call; a policy that `holds` never answers."""

    def __init__(self, chat: QwenFormat, line: Line = ANSWER, *, holds: bool = False) -> None:
        self.asked = anyio.Event()
        self.chat = chat
        self._line = line
        self._holds = holds

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """See `TurnClient`."""
        del routing_key, priority
        line = ANSWER if self.asked.is_set() else self._line
        self.asked.set()
        await (anyio.sleep_forever() if self._holds else anyio.lowlevel.checkpoint())
        ids = line(self.chat, self.chat.vocab.decode(input_ids))[: sampling.max_new_tokens]
        is_whole = ids[-1] in self.chat.stop_ids
        reason = "stop" if is_whole else "length"
        return Generation(ids, [-1.0] * len(ids), [0] * len(ids), reason)

    def new_weights(self) -> None:
        """There are none."""

    def permit_stats(self) -> PermitStats:
        """See `TurnClient`."""
        return PermitStats()
