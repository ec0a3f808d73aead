"""`CallRecorder`: the calls of one episode to its model, answered under its budgets and recorded.

    OPEN -> CLOSED       with the episode; a call in flight ends there, a later one is refused

Nothing of a call is kept before its answer is there: one that fails leaves no trace, one that the
agent gave up leaves a count, and either may be made again. A budget that has run out refuses the
call and is remembered as the episode's stop reason; what the agent makes of that is its own. What
fails for another reason (an engine that is lost, tokens that cannot be right) is `failure`, and
ends the episode.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import anyio

from agentrl.actors.cutting import cut_at_ids, cut_at_stop
from agentrl.actors.endpoint.answers import Answer
from agentrl.actors.endpoint.calls import Call, CallTree, Segment
from agentrl.actors.endpoint.history import history_key, num_answered
from agentrl.actors.endpoint.native import Generated, GenerateRequest, text_of
from agentrl.actors.endpoint.prompts import Prompts
from agentrl.actors.endpoint.reading import read_turn
from agentrl.actors.endpoint.requests import ChatRequest
from agentrl.actors.limits import Budget, Limits, prompt_too_long
from agentrl.actors.sampling import sample_turn
from agentrl.actors.writing import Writers, num_chars
from agentrl.errors import ChatError, EnvError, TextTooLongError
from agentrl.roles import POLICY
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ChatFormat, ToolSchema
from agentrl.tokens.spans import Span, context_spans
from agentrl.types import EpisodeAssignment, Generation, StopReason, TurnClient

__all__ = ["CallRecorder"]

_COUNTED = (
    "tool_calls",
    "malformed_calls",
    "refused_calls",
    "ignored_settings",
    "abandoned_calls",
    "retractions",
    "resampled_turns",
)
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class CallRecorder:
    """Answers the calls of one episode. `on_failure` is called once, when the episode cannot go on;
    `time` is its time: what is cancelled when that is up, nobody has given up.

    `refused`: the budget that refused a call, if no later one was answered. `num_asked`: calls that
    reached for the engine. `roles`: the names that asked, whether or not they were answered.
    `last_text`: of the newest answer. `writers`: threads for long prompts, which no agent that
    blocks can take. `writes_prompts`: the agent asks by text or ids, as SGLang's own `/generate` is
    asked. `max_spent`: such requests that are answered with no token after a budget is spent, for
    functions that look at the finish reason end by it. `is_free`: each may say how it is sampled.
    """

    max_spent, is_free = 16, False

    def __init__(
        self,
        assignment: EpisodeAssignment,
        chat: ChatFormat,
        limits: Limits,
        client: TurnClient,
        writers: Writers | None = None,
        *,
        writes_prompts: bool = False,
    ) -> None:
        self.assignment = assignment
        self.on_failure: Callable[[], None] = lambda: None
        self.time: anyio.CancelScope | None = None
        self.failure: Exception | None = None
        self.refused: StopReason | None = None
        self.num_asked = 0
        self.roles: set[str] = set()
        self.last_text = ""
        self.metrics = dict.fromkeys(_COUNTED, 0.0)
        self.chat = chat
        self._limits = limits
        self._client = client
        self._writers = writers or Writers(1)
        self._budget = Budget(limits)
        #: Tokens of all answers, and those that answers under way may have.
        self._num_sampled = 0
        self._writes_prompts = writes_prompts
        self._tree = CallTree(chat, writes_prompts=writes_prompts)
        self._prompts = Prompts(self._tree, chat.vocab)
        self._adopted: Sequence[Call] | None = None
        self._num_spent = 0
        self._num_named = 0
        self._known: dict[bytes, list[Call]] = defaultdict(list)
        self._in_flight: set[anyio.CancelScope] = set()
        self._arriving: set[anyio.CancelScope] = set()
        self._is_open = True
        self._heard = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """Seconds since the end of the newest call, which the close of the episode may be."""
        return time.monotonic() - self._heard

    @property
    def num_calls(self) -> int:
        """Calls that were answered."""
        return len(self.calls)

    def close(self) -> None:
        """End the calls in flight, and refuse all that come later."""
        self._is_open = False
        if self._in_flight or self._arriving:
            self._heard = time.monotonic()
        for scope in (*self._in_flight, *self._arriving):
            scope.cancel()

    async def arrived(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The body of a call, which `read` waits for. Raises ChatError when the episode has ended
        before it was there."""
        with self._while_open(self._arriving):
            return await read()

    def segments(self) -> list[Segment]:
        """The trajectories of what was recorded. Raises TokenError."""
        return self._tree.segments()

    @property
    def calls(self) -> Sequence[Call]:
        """Those that were answered, in the order of their answers."""
        return self._tree.calls if self._adopted is None else self._adopted

    def adopt(self, calls: Sequence[Call]) -> None:
        """Have made `calls`, which were recorded elsewhere, and no other."""
        self._adopted = calls
        self.num_asked = len(calls)
        for call in calls:
            self.last_text = self.chat.vocab.decode(call.generation.output_ids)
            self.metrics["retractions"] += call.generation.num_retractions
            self.metrics["resampled_turns"] += call.generation.num_resamples

    @property
    def limits(self) -> Limits:
        """The budgets of the episode."""
        return self._limits

    async def answer(self, request: ChatRequest) -> Answer:
        """Sample the answer to `request`. Raises ChatError."""
        return await self._recorded(self._answer, request)

    async def generate(self, request: GenerateRequest) -> Generated:
        """The same for a prompt that the agent has written. Raises ChatError."""
        if not self._writes_prompts:
            raise ChatError(
                "/generate is for a function of --custom-generate-function-path; the agent of this "
                "episode asks /v1/chat/completions",
                status=404,
                code="unknown_url",
            )
        return await self._recorded(self._generated, request)

    async def first_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        """The text of a prompt, as the chat format writes it for a first call. One that is too long
        ends the episode as its call would. Raises ChatError, EnvError."""
        try:
            return await self._writers.run(num_chars(messages, tools), self._text, messages, tools)
        except TextTooLongError as error:
            raise self._too_long(str(error)) from error

    def _text(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        spans = self.chat.open_prompt(messages, tools)
        return self.chat.vocab.decode([id_ for span in spans for id_ in span.ids])

    async def _recorded(
        self, work: Callable[[Request], Awaitable[Reply]], request: Request
    ) -> Reply:
        with self._while_open(self._in_flight):
            try:
                return await work(request)
            except ChatError:
                raise
            except asyncio.CancelledError:
                self.metrics["abandoned_calls"] += self._goes_on()
                raise
            except Exception as failure:
                raise self._fail(failure) from failure

    async def _answer(self, request: ChatRequest) -> Answer:
        self.roles.add(request.role)
        self.metrics["ignored_settings"] += bool(request.ignored)
        parent, opened = await self._written(self._parent(request), request)
        prompt = self._tree.prompt(parent, opened)
        generation = await self._generate(prompt, self._room(prompt, request.max_tokens))
        generation = cut_at_stop(self.chat, generation, request.stop)
        index = len(self._tree)
        self.refused = None  # the agent found a way to go on
        call = self._tree.add(parent, opened, prompt, generation, request.role)
        message, parsed = read_turn(self.chat, generation.output_ids, index, request)
        said = (*request.messages, message)
        self._known[history_key(request.role, request.tools, said)].append(call)
        self.last_text = message.content
        self.metrics["malformed_calls"] += parsed.parse_error is not None
        self._take_calls(len(message.calls))
        return Answer(
            id=f"chatcmpl-{self.assignment.id}-{index}",
            message=message,
            reasoning=parsed.reasoning,
            finish_reason="tool_calls" if message.calls else generation.finish_reason,
            num_prompt=len(prompt),
            num_sampled=len(generation.output_ids),
        )

    async def _generated(self, request: GenerateRequest) -> Generated:
        self.metrics["ignored_settings"] += bool(request.ignored)
        prompt = await self._prompt(request)
        if not prompt:
            raise ChatError("the prompt is empty; a request needs at least one token", param="text")
        id_, self._num_named = f"gen-{self.assignment.id}-{self._num_named}", self._num_named + 1
        spent = Generated(id_, prompt, Generation([], [], [], "length"), "")
        if request.max_new_tokens == 0:
            return spent
        try:
            room = self._room(prompt, request.max_new_tokens)
        except ChatError:
            self._num_spent += 1
            if self.failure is not None or self._num_spent > self.max_spent:
                raise
            return spent
        vocab = self.chat.vocab
        generation = cut_at_ids(await self._generate(prompt, room), request.stop_ids)
        generation = cut_at_stop(self.chat, generation, request.stop)
        said = vocab.decode(generation.output_ids)
        stops = (*request.stop, *self.assignment.sampling.stop)
        matched = next((stop for stop in stops if stop in said), None)
        text = text_of(vocab, generation, request, matched)
        self.refused = None  # the function found a way to go on
        parent, rest = self._prompts.parent(prompt)
        opened = context_spans(vocab, rest)
        call = self._tree.add(parent, opened, prompt, generation, POLICY)
        skips = request.skip_special
        self._prompts.remember(call, prompt, request.text, text, skip_special=skips)
        self.last_text = text
        return Generated(id_, prompt, generation, text, matched)

    async def _prompt(self, request: GenerateRequest) -> list[int]:
        if request.text is None:
            self._prompts.require_known(request.ids)
            return list(request.ids)
        kept = self._prompts.kept(request.text)
        try:
            rest = await self._writers.run(
                len(kept.rest), self.chat.vocab.encode_trusted, kept.rest
            )
        except TextTooLongError as error:
            raise self._too_long(str(error)) from error
        except UnicodeEncodeError as error:
            raise ChatError(f"the text is no valid Unicode: {error}", param="text") from error
        return [*kept.ids, *rest]

    # ---- where a call stands ----

    def _parent(self, request: ChatRequest) -> Call | None:
        """The call whose answer is the last in the request's history, if the whole history up to
        there is this episode's. Of several that say the same, one that nothing continues yet."""
        seen = num_answered(request.messages)
        key = history_key(request.role, request.tools, request.messages[:seen])
        known = self._known.get(key, [])
        free = [call for call in known if not self._tree.is_continued(call)]
        return next(reversed(free or known), None) if seen else None

    async def _written(
        self, parent: Call | None, request: ChatRequest
    ) -> tuple[Call | None, list[Span]]:
        """Raises ChatError for what cannot be written, or is certainly too long."""
        chars = num_chars(request.messages, request.tools)
        try:
            return await self._writers.run(chars, self._opened, parent, request)
        except TextTooLongError as error:
            raise self._too_long(str(error)) from error

    def _opened(self, parent: Call | None, request: ChatRequest) -> tuple[Call | None, list[Span]]:
        """Which call goes on, and by what. None does where the chat format remembers one of them
        otherwise than it was sampled: then a prompt holds them as they are remembered."""
        try:
            if parent is None:
                return None, self.chat.open_prompt(request.messages, request.tools)
            new = request.messages[num_answered(request.messages) :]
            observed = self.chat.observe(new, parent.generation.output_ids)
            history = self._tree.remembered(parent, new)
            return (parent, observed) if history is None else (None, [*history, *observed])
        except EnvError as error:
            raise ChatError(f"the messages cannot be written: {error}", param="messages") from error

    # ---- budgets ----

    def _room(self, prompt: Sequence[int], asked_for: int | None) -> int:
        """Tokens that the answer may have, of those that were asked for."""
        limits, num_prompt = self._limits, len(prompt)
        if not self._tree and num_prompt > limits.max_prompt:
            raise self._too_long(f"it has {num_prompt} tokens")
        num_turns = len(self._tree) + len(self._in_flight)
        if num_turns > limits.max_turns:
            words = f"the episode has had its {limits.max_turns} turns (--max-turns)"
            raise self._refuse(StopReason.TURN_LIMIT, words)
        if self._budget.tokens_left(self._num_sampled, 1) < 1:
            words = f"the episode has sampled its {limits.max_episode_tokens} tokens"
            raise self._refuse(StopReason.RESPONSE_LIMIT, f"{words} (--max-episode-tokens)")
        most = self.assignment.sampling.max_new_tokens
        room = self._budget.room(num_prompt, min(most, asked_for or most), self._num_sampled)
        if room < 1:
            raise self._refuse(
                StopReason.CONTEXT_LIMIT,
                f"the messages have {num_prompt} tokens, and the context of {limits.max_context} "
                "leaves none to answer (--rollout-max-context-len); send fewer or shorter ones",
            )
        asked = len(self._in_flight) * (num_prompt + room)
        if self._tree.bytes_after(asked) > limits.max_bytes:
            raise self._refuse(
                StopReason.CONTEXT_LIMIT,
                f"its segments hold {self._tree.num_tokens} tokens, each with what it has read; "
                f"no more than {limits.max_bytes >> 20} MiB can be reported: branch off less often",
            )
        return room

    def _too_long(self, found: str) -> ChatError:
        """Whose first prompt does not fit, has no episode; a later call has had its context."""
        if not self._tree:
            return self._fail(prompt_too_long(self.assignment, self._limits, found))
        words = f"{found}; the context of {self._limits.max_context} tokens cannot hold it"
        return self._refuse(StopReason.CONTEXT_LIMIT, f"{words} (--rollout-max-context-len)")

    def _take_calls(self, count: int) -> None:
        self.metrics["tool_calls"] += count
        if not self._budget.take_calls(count):
            limit = self._limits.max_tool_calls
            words = f"the answer makes {count} calls, over the episode's {limit} (--max-tool-calls)"
            raise self._refuse(StopReason.TOOL_CALL_LIMIT, words)

    def _refuse(self, reason: StopReason, words: str) -> ChatError:
        self.refused = self.refused or reason
        self.metrics["refused_calls"] += 1
        too_long = reason is StopReason.CONTEXT_LIMIT
        return ChatError(
            f"episode {self.assignment.id}: {words}",
            code="context_length_exceeded" if too_long else reason.value,
        )

    # ---- the engine ----

    async def _generate(self, prompt: list[int], room: int) -> Generation:
        turn, self.num_asked = self.num_asked, self.num_asked + 1
        self._num_sampled += room  # what answers beside it may no longer take
        num = 0
        try:
            generation = await sample_turn(
                self._client, self.chat, self.assignment, prompt, room=room, turn=turn
            )
            num = len(generation.output_ids)
        finally:
            self._num_sampled += num - room
        self.metrics["retractions"] += generation.num_retractions
        self.metrics["resampled_turns"] += generation.num_resamples
        return generation

    def _fail(self, failure: Exception) -> ChatError:
        if self.failure is None:
            self.failure = failure
            self.on_failure()
        words = f"episode {self.assignment.id} cannot go on: {failure}"
        return ChatError(words, status=503, code="episode_failed")

    def _goes_on(self) -> bool:
        return self._is_open and not (self.time is not None and self.time.cancel_called)

    @contextmanager
    def _while_open(self, scopes: set[anyio.CancelScope]) -> Iterator[None]:
        over = ChatError(
            f"episode {self.assignment.id} has ended; its model answers no more",
            status=410,
            code="episode_ended",
        )
        if not self._is_open:
            raise over
        with anyio.CancelScope() as scope:
            scopes.add(scope)
            try:
                yield
            finally:
                scopes.discard(scope)
                self._heard = time.monotonic()
        if scope.cancelled_caught:
            raise over
