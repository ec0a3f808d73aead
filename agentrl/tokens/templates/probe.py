"""`TemplateProbe`: how the template renders a question and a turn, and where each part stands.

    question | opener | turn | token that ends it | answer | opener

All texts are hidden (`Words`), so that a place in a rendering is found by its word.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentrl.errors import ConfigError, EnvError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.template import ChatTemplate
from agentrl.tokens.templates.hidden import Words
from agentrl.tokens.templates.marks import Marks
from agentrl.tokens.templates.plain import (
    Plain,
    call_of,
    calls_that_results_answer,
    plain_messages,
)

__all__ = ["TOOL", "TemplateProbe"]

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string"}},
            "required": ["where"],
        },
    },
}


class TemplateProbe:
    """`ends`: tokens that end a turn, as far as they are known; `as_text`: the template takes
    arguments as JSON text."""

    def __init__(self, template: ChatTemplate, marks: Marks) -> None:
        self.template, self.marks = template, marks
        self.ends: set[str] = set()
        self.as_text = False
        words, question = self.question()
        self.closed = self.rendered(words, [question])
        self.opened = self.rendered(words, [question], opened=True)
        self._openings = [self.opened]
        with suppress(ConfigError):  # one that takes no tools is told where there are some
            self._openings.append(self.rendered(words, [question], [TOOL], opened=True))

    def question(self) -> tuple[Words, Plain]:
        """Words, and a question that has the first of them."""
        words = Words(self.template.source)
        return words, {"role": "user", "content": words.fresh("?")}

    def turn(self) -> tuple[Words, Plain, Plain]:
        """The same with a turn that has the second."""
        words, question = self.question()
        return words, question, {"role": "assistant", "content": words.fresh("said")}

    def rendered(
        self,
        words: Words,
        messages: Sequence[Plain],
        tools: Sequence[Any] = (),
        *,
        opened: bool = False,
    ) -> str:
        """Raises ConfigError, as the template does, and where it changes its words."""
        text = self.template.render(messages, tools, opened=opened)
        words.check(text, self.template.place)
        return text

    def for_env(
        self,
        words: Words,
        messages: Sequence[Plain],
        tools: Sequence[Any] = (),
        *,
        opened: bool = False,
    ) -> str:
        """`rendered`, of what an Env said: what the template does not take is an `EnvError`."""
        try:
            return self.rendered(words, messages, tools, opened=opened)
        except ConfigError as error:
            raise EnvError(str(error)) from error

    def opens(self, rendered: str) -> bool:
        """Whether a turn after the question still follows the opener that it was sampled after."""
        return any(map(rendered.startswith, self._openings))

    def turn_begins(self, rendered: str) -> int:
        """Where a turn after the question begins: behind its opener. Where an answered turn is
        opened with less, both begin alike up to some control token."""
        return max(self._num_common(rendered, opened) for opened in self._openings)

    def before_end(self, words: Words, rendered: str) -> str:
        """A turn up to the token that ends it."""
        last = words.last(rendered)
        tail = self.marks.split(rendered[last:])
        at = next((at for at in range(1, len(tail), 2) if tail[at] in self.ends), len(tail))
        return rendered[:last] + "".join(tail[:at])

    def answer(
        self, words: Words, messages: Sequence[Message], calls: Sequence[ToolCall] | None
    ) -> str:
        """What follows a turn that made `calls`, from the token that ends it on. None: nobody can
        tell what calls are. `words` are fresh."""
        if any(message.role == "system" for message in messages):
            raise EnvError("a system message may only be the first of a prompt")
        question = {"role": "user", "content": words.fresh("?")}
        turn: Plain = {"role": "assistant", "content": words.fresh("said")}
        made = [] if calls is None else calls_that_results_answer(calls, messages)
        hide = words.hide_in
        answers = plain_messages(messages, as_text=self.as_text, hide=hide, made=made)
        if made:
            given = {"a": words.fresh("b")}
            turn["tool_calls"] = [
                call_of(hide(call.id), hide(call.name), given, self.as_text) for call in made
            ]
        tools = [TOOL] if made else []
        alone = self.for_env(words, [question, turn], tools)
        whole = self.for_env(words, [question, turn, *answers], tools, opened=True)
        num = len(words.places(alone))
        tail = self.before_end(words, alone)[words.last(alone) :]
        places = words.places(whole)
        rest = whole[places[num - 1] :] if len(places) >= num else ""
        if not rest.startswith(tail):
            raise EnvError(
                f"{self.template.place} writes a turn otherwise once it is answered: "
                f"{rest[: len(tail) + 20]!r} where it had {tail!r}"
            )
        return rest[len(tail) :]

    def _num_common(self, rendered: str, opened: str) -> int:
        """Characters that both begin with, control tokens whole."""
        num = 0
        pairs = zip(self.marks.split(rendered), self.marks.split(opened), strict=False)
        for number, (one, other) in enumerate(pairs):
            if one != other:
                return num + (0 if number % 2 else _num_equal(one, other))
            num += len(one)
        return num


def _num_equal(one: str, other: str) -> int:
    """Characters that two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
