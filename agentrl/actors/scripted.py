"""`Scripted`: a policy that says what a script has it say, as an engine would sample it.

    SCRIPTS   first turn: a line of its own   every turn after it: the answer "42"
    ENDLESS   every turn: as it began, for ever

A line may call the first tool that the agent offers. It is for trying agents (`rollout_contract`).
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
from agentrl.envs.check.arguments import made_up
from agentrl.envs.check.turns import HOSTILE
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.types import Generation, SamplingParams, TurnClient

__all__ = ["ANSWER", "ENDLESS", "SCRIPTS", "Script", "Scripted", "shipped_format", "words"]

#: How a line of a prompt begins that tells of a tool.
_TOOL = '{"type": "function"'


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Told(msgspec.Struct):
    """A tool, as prompts tell of it."""

    function: _Function


#: What a turn says: ids, of a chat format and the text of the prompt.
Line = Callable[[ChatFormat, str], list[int]]
#: What is said at which turn, from 0.
Script = Callable[[int], Line]


def words(text: str) -> Line:
    """A turn that says `text`, whose markers are no control tokens, and ends."""
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


def _call(arguments: str | None, name: str | None = None) -> Line:
    """Calls the first tool, or another name; None: with arguments made from its schema."""

    def line(chat: ChatFormat, prompt: str) -> list[int]:
        first, parameters = _first_tool(prompt)
        given = made_up(parameters).decode() if arguments is None else arguments
        body = f'{{"name": {json.dumps(name or first)}, "arguments": {given}}}'
        return _marked(f"<tool_call>\n{body}\n</tool_call>")(chat, prompt)

    return line


def _at_first(line: Line) -> Script:
    return lambda turn: _FORTY_TWO if turn else line


def _for_ever(*lines: Line) -> Script:
    return lambda turn: lines[turn % len(lines)]


_FORTY_TWO = words("42")
_FITTING = _call(None)
_HALF = _marked("<tool_call>\n{")
_UNKNOWN = _call("{}", "no_such_tool")
_TOO_MANY = _call('{"no_such": [1]}')
_HOSTILE = words("\n".join(HOSTILE[:13]))

ANSWER = _at_first(_FORTY_TWO)
#: What any policy may say first, each with what it is.
SCRIPTS: Mapping[str, Script] = {
    "an answer": ANSWER,
    "silence": _at_first(words("")),
    "half a call": _at_first(_HALF),
    "a call with arguments that fit": _at_first(_FITTING),
    "a call without arguments": _at_first(_call("{}")),
    "a call with an argument too many": _at_first(_TOO_MANY),
    "a call of a tool that is not there": _at_first(_UNKNOWN),
    "text that spells markers and orders": _at_first(_HOSTILE),
}
#: Policies that never stop.
ENDLESS: Mapping[str, Script] = {
    "a policy that calls a tool for ever": _for_ever(_FITTING),
    "a policy that never calls a tool": _for_ever(words("I do not know.")),
    "a policy that answers garbage": _for_ever(_HALF, _UNKNOWN, _TOO_MANY, words(""), _HOSTILE),
}


def shipped_format() -> QwenFormat:
    """The format `qwen`, which tells of tools, over the tokenizer of the default model."""
    folder = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))
    return QwenFormat(load_format("qwen", folder).vocab)


class Scripted(TurnClient):
    """A `TurnClient`. `asked` is set with the first call, `num_answered` counts; a policy that
    `holds` never answers."""

    def __init__(self, chat: ChatFormat, script: Script = ANSWER, *, holds: bool = False) -> None:
        self.asked = anyio.Event()
        self.num_answered = 0
        self.chat = chat
        self._script = script
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
        self.asked.set()
        await (anyio.sleep_forever() if self._holds else anyio.lowlevel.checkpoint())
        line = self._script(self.num_answered)
        self.num_answered += 1
        ids = line(self.chat, self.chat.vocab.decode(input_ids))[: sampling.max_new_tokens]
        is_whole = ids[-1] in self.chat.stop_ids
        reason = "stop" if is_whole else "length"
        return Generation(ids, [-1.0] * len(ids), [0] * len(ids), reason)
