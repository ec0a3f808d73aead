"""What is said in an episode, before and after it is tokens: messages, tool calls, parsed turns.

The content of every message is untrusted text: no chat format ever turns it into a control token.
"""

from typing import Self

import msgspec

from agentrl.errors import EnvError

__all__ = ["ROLES", "CallMessage", "Message", "ParsedTurn", "ToolCall"]

#: Roles a message may have.
ROLES = frozenset({"system", "user", "assistant", "tool"})


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a prompt or an observation.

    Raises `EnvError` on an unknown role or a content that is not text. `tool_call_id` says which
    call a tool message answers.
    """

    role: str
    content: str
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise EnvError(f"a message has the role {self.role!r}; use one of {sorted(ROLES)}")
        content: object = self.content
        if not isinstance(content, str):
            found = type(content).__name__
            raise EnvError(f"the content of a {self.role} message is {found}; it must be str")

    @classmethod
    def system(cls, content: str) -> Self:
        """Instructions at the start of a prompt."""
        return cls("system", content)

    @classmethod
    def user(cls, content: str) -> Self:
        """What the user or the environment says."""
        return cls("user", content)

    @classmethod
    def assistant(cls, content: str) -> Self:
        """An example turn inside a prompt: context, never trained. A `Step` refuses it."""
        return cls("assistant", content)

    @classmethod
    def tool(cls, content: str, tool_call_id: str | None = None) -> Self:
        """The result of a tool call."""
        return cls("tool", content, tool_call_id)


class ToolCall(msgspec.Struct, frozen=True):
    """A call as the model sampled it. `arguments` are its raw JSON bytes, not yet validated."""

    id: str
    name: str
    arguments: bytes


class CallMessage(Message, frozen=True, omit_defaults=True):
    """An assistant message inside a prompt that made calls: context, never trained. The arguments
    of its calls are JSON."""

    calls: tuple[ToolCall, ...] = ()


class ParsedTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat format read in the sampled ids of one turn.

    `text` is everything outside tool calls and reasoning. When `parse_error` is set it says, for
    the model to read, what is wrong with the turn, and `tool_calls` is empty: calls are taken all
    or none.
    """

    text: str
    tool_calls: list[ToolCall]
    parse_error: str | None = None
    reasoning: str = ""
