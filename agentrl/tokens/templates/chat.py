"""`TemplateFormat`: the chat format that a model's own template describes.

Nothing is known of a template but what it writes of a question, a turn, and what answers it. Where
these differ says what opens a turn, what ends one, how calls are written and what follows. Texts
are given hidden (`Words`), so that none steers the template, and each stays UNTRUSTED.

What answers a turn is taken from a rendering of that turn and its answer alone. `prove` shows that
whole dialogues give the same, or says where they do not.
"""

from collections.abc import Collection, Iterator, Sequence

from agentrl.errors import ConfigError, EnvError
from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.thoughts import THINK, THINK_END, split_thought
from agentrl.tokens.spans import Author, Piece, Span, context_spans, encode_pieces
from agentrl.tokens.template import ChatTemplate
from agentrl.tokens.templates.calls import CallsOf
from agentrl.tokens.templates.hidden import Words
from agentrl.tokens.templates.learning import how_calls_are_written, how_thoughts_are_shown
from agentrl.tokens.templates.marks import Marks
from agentrl.tokens.templates.plain import Plain, calls_as_plain, plain_messages
from agentrl.tokens.templates.probe import TOOL, TemplateProbe
from agentrl.tokens.vocab import Vocab
from agentrl.types import SpanKind

__all__ = ["TemplateFormat"]


class TemplateFormat:
    """A `ChatFormat`. `ends`: tokens that the model's files say end a turn. Raises `ConfigError`
    where the template opens no turn, or does not say how one ends.

    `lacks_calls` says why calls cannot be read, where they cannot; a prompt with tools is refused
    then. `shows_thoughts`: the template takes a turn's reasoning, and
    opens no turn behind a thought.
    """

    def __init__(self, vocab: Vocab, template: ChatTemplate, *, ends: Collection[str] = ()) -> None:
        self.vocab, self.template = vocab, template
        self._marks = Marks(vocab)
        self._probe = probe = TemplateProbe(template, self._marks)
        opener = self._opener_of(probe.closed, probe.opened)
        self._thinks_at_once = opener.rfind(THINK) > opener.rfind(THINK_END)
        probe.ends = {*self._first_after_said(), *(end for end in ends if end in vocab.control)}
        self.lacks_calls = ""
        self._calls: CallsOf | None = None
        try:
            self._calls, self._example = how_calls_are_written(probe)
        except ConfigError as error:
            self.lacks_calls = str(error)
        before = self._marks.shown(self._calls.before) if self._calls else ""
        shows, self._drops, self._leads = how_thoughts_are_shown(probe, before)
        self.shows_thoughts = shows and THINK_END not in opener
        self.tools_in_prompt = self._shows_tools()
        self._learn_answers(opener)

    # ---- a chat format ----

    def open_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Span]:
        """See `ChatFormat`. Raises `EnvError` on messages that the template refuses."""
        if not messages:
            raise EnvError("reset returned no messages; a prompt needs at least one")
        if tools and self._calls is None:
            raise EnvError(f"tools, and no way to call them: {self.lacks_calls}")
        words = Words(self.template.source)
        told = plain_messages(messages, as_text=self.takes_text, hide=words.hide_in)
        text = self._probe.for_env(words, told, words.hide_in(list(tools)), opened=True)
        spans = encode_pieces(self.vocab, self._pieces(words, text))
        if self._opened_at_the_end(spans) is None:
            last = messages[-1].role
            raise EnvError(f"{self.template.place} opens no turn after a message of {last}")
        return spans

    def observe(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span]:
        """See `ChatFormat`."""
        calls = None if self._calls is None else self.parse(sampled).tool_calls
        first, *rest = self._answer(messages, calls)
        named = first.author is Author.CONTROL and self.vocab.control[first.text] in sampled[-1:]
        return encode_pieces(self.vocab, rest if named else [first, *rest])

    def remembered(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span] | None:
        """See `ChatFormat`. A template may drop the thoughts of turns that a user has answered;
        ids are left out then, none is written anew."""
        if not self._drops or all(message.role != "user" for message in messages):
            return None
        said = self._said(sampled)
        _, kept = split_thought(self.vocab, said, opened=self._thinks_at_once)
        if len(kept) == len(said):
            return None
        start = next((at for at, id_ in enumerate(kept) if self.vocab.decode([id_]).strip("\n")), 0)
        begins = self._marks.of_ids(kept[start:])
        before = self._calls.before.strip() if self._calls is not None else ""
        lead = self._marks.pieces(self._leads[bool(before) and begins.startswith(before)])
        ended = [Span(SpanKind.CONTROL, [*sampled[len(said) :]])]
        whole = context_spans(self.vocab, kept[start:])
        return [*encode_pieces(self.vocab, lead), *whole, *(ended if ended[0].ids else [])]

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """See `ChatFormat`."""
        if calls and self._calls is None:
            raise EnvError(f"no way to write calls: {self.lacks_calls}")
        words, question = self._probe.question()
        thought, ended, said = text.rpartition(THINK_END)
        turn: Plain = {"role": "assistant", "content": words.fresh(text) if text else ""}
        if self.shows_thoughts and (ended or self._thinks_at_once):
            said = (said if ended else text).lstrip("\n")
            turn["content"] = words.fresh(said) if said else ""
            turn["reasoning_content"] = words.fresh(thought.strip().removeprefix(THINK).strip())
        if calls:
            turn["tool_calls"] = calls_as_plain(calls, as_text=self.takes_text, hide=words.hide_in)
        rendered = self._probe.for_env(words, [question, turn], [TOOL] if calls else [])
        body = self._probe.before_end(words, rendered[self._probe.turn_begins(rendered) :])
        written = words.told(body)
        if self._thinks_at_once and not ended and not self._probe.opens(rendered):
            written = f"\n{THINK_END}\n\n{written}"
        ids = self.vocab.encode_trusted(written)
        if found := [id_ for id_ in ids if id_ in self.stop_ids]:
            raise EnvError(f"a demonstrated turn holds the control ids {found}, which end a turn")
        return [*ids, self._end_ids[bool(calls)]]

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `ChatFormat`. Text up to the last `</think>`, and after a `<think>` that is not
        closed, is reasoning; calls in it are not calls."""
        ids = self._said(sampled)
        thought, said = split_thought(self.vocab, ids, opened=self._thinks_at_once)
        reasoning = self.vocab.decode(thought).strip("\n")
        if found := [id_ for id_ in ids if id_ in self._forbidden]:
            error = f"{self.vocab.decode(found[:1])} is not yours to write"
            return ParsedTurn(self.vocab.decode(said), [], error, reasoning)
        if self._calls is None:
            text, calls = self.vocab.decode(said), list[ToolCall]()
        else:
            try:
                text, calls = self._calls.read(self._marks.of_ids(said), f"call_{index}_", tools)
            except MalformedCallError as error:
                wrong = f"{self._marks.shown(str(error))}; write a call as {self._example}"
                return ParsedTurn(self.vocab.decode(said), [], wrong, reasoning)
            text = self._marks.shown(text)
        has_thought = len(said) < len(ids)
        return ParsedTurn(text.lstrip("\n") if has_thought else text, calls, None, reasoning)

    # ---- for a proof ----

    @property
    def takes_text(self) -> bool:
        """Whether the template is given arguments as JSON text."""
        return self._probe.as_text

    @property
    def takes_many_calls(self) -> bool:
        """Whether a turn may make several calls."""
        return self._calls is not None and (self._calls.is_list or self._calls.between is not None)

    def turn_of(self, rendered: str, is_call: bool) -> list[int]:
        """The ids of the turn that a rendering begins with, its end included."""
        parts = self._marks.split(rendered)
        ends = self._probe.ends
        at = next((at for at in range(1, len(parts), 2) if parts[at] in ends), len(parts))
        end = self.vocab.control[parts[at]] if at < len(parts) else self._end_ids[is_call]
        return [*self.vocab.encode_trusted("".join(parts[:at])), end]

    # ---- what the template tells ----

    def _opener_of(self, closed: str, opened: str) -> str:
        """What the opened rendering has more, from its first control token on; where that is
        nothing, what begins with its last control token."""
        more = opened[len(closed) :] if opened.startswith(closed) else ""
        first, *rest = self._marks.split(more)
        if rest:
            more = more[len(first) :]
        elif not more:
            tail = opened[Words(self.template.source).last(opened) :]
            more = "".join(self._marks.split(tail)[-2:])
        spans = encode_pieces(self.vocab, self._marks.pieces(more))
        if len(spans) != 1:
            raise ConfigError(
                f"{self.template.place} opens no turn of the assistant: where one is asked for, it "
                f"ends with {opened[-80:]!r}"
            )
        self.assistant_opener = tuple(spans[0].ids)
        return more

    def _first_after_said(self) -> list[str]:
        """A turn ends with the first control token after what it says, if there is one."""
        words, question, turn = self._probe.turn()
        rendered = self._probe.rendered(words, [question, turn])
        place = words.place(rendered, turn["content"])
        if place is None:
            raise ConfigError(f"{self.template.place} does not show what the assistant says")
        return self._marks.split(rendered[place[1] :])[1:2]

    def _shows_tools(self) -> bool:
        words, question = self._probe.question()
        name = words.hide("look")
        try:
            rendered = self._probe.rendered(words, [question], words.hide_in([TOOL]), opened=True)
        except ConfigError:
            return False
        return words.place(rendered, name) is not None

    def _learn_answers(self, opener: str) -> None:
        """The marks of who answers: none is the policy's to write, and each ends its turn."""
        call = [ToolCall("call_0_0", "look", b'{"where": "a"}')]
        answers = {False: self._first_answer(Message.user("R"), None if self.lacks_calls else [])}
        if self._calls is not None:
            answers[True] = self._first_answer(Message.tool("R", "call_0_0"), call)
        openers = [
            self._opened_at_the_end(encode_pieces(self.vocab, pieces))
            for pieces in answers.values()
        ]
        others = {each for each in openers if each is not None} - {self.assistant_opener}
        self.other_openers = tuple(sorted(others))
        self._end_ids = {
            is_call: self.vocab.control[pieces[0].text] for is_call, pieces in answers.items()
        }
        ends = self._probe.ends | {pieces[0].text for pieces in answers.values()}
        self._probe.ends = ends
        marks = {piece.text for pieces in answers.values() for piece in pieces}
        marks |= {piece.text for piece in self._marks.pieces(opener)}
        letters = "".join(self._calls.letters) if self._calls is not None else ""
        own = {*ends, THINK, THINK_END, *self._marks.tokens(letters)}
        self._forbidden = {
            self.vocab.control[text] for text in marks - own if text in self.vocab.control
        }
        named = {self.vocab.control[end] for end in ends}
        self.stop_ids = tuple(sorted(named | self._forbidden))

    def _first_answer(self, message: Message, calls: Sequence[ToolCall] | None) -> list[Piece]:
        """What answers a turn; it begins with what ends that."""
        try:
            pieces = self._answer([message], calls)
        except EnvError as error:
            raise ConfigError(str(error)) from error
        if pieces[0].author is not Author.CONTROL:
            raise ConfigError(
                f"{self.template.place} ends no turn: after one, it goes on with "
                f"{pieces[0].text[:80]!r}, which is no control token"
            )
        return pieces

    # ---- parts ----

    def _answer(self, messages: Sequence[Message], calls: Sequence[ToolCall] | None) -> list[Piece]:
        words = Words(self.template.source)
        text = self._probe.answer(words, messages, calls)
        return [*self._pieces(words, text)] or [Piece(Author.FORMAT, "")]

    def _pieces(self, words: Words, text: str) -> Iterator[Piece]:
        for piece in words.pieces(text):
            if piece.author is Author.FOREIGN:
                yield piece
            else:
                yield from self._marks.pieces(piece.text)

    def _opened_at_the_end(self, spans: Sequence[Span]) -> tuple[int, ...] | None:
        """What opens a turn where these end: the usual, or what begins with their last control
        token."""
        ids = spans[-1].ids if spans and spans[-1].kind is SpanKind.CONTROL else []
        if tuple(ids[-len(self.assistant_opener) :]) == self.assistant_opener:
            return self.assistant_opener
        for at in reversed(range(len(ids))):
            if ids[at] in self.vocab.control_ids:
                found = tuple(ids[at:])
                known = getattr(self, "other_openers", None)
                return found if known is None or found in known else None
        return None

    def _said(self, sampled: Sequence[int]) -> list[int]:
        """A turn's ids without the one that ended it."""
        ends = {self.vocab.control[end] for end in self._probe.ends}
        return [*sampled[:-1]] if sampled and sampled[-1] in ends else [*sampled]
