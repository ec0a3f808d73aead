"""`EngineClient`: one turn of the policy, from token ids to token ids.

The router keeps the requests of one routing key on one engine. Every attempt has its own request
id; one that is cancelled or misses its deadline is aborted on the engines themselves, because
nothing else stops it from taking capacity.

An engine may die and come back within a turn: what failed is sent again, from the same prompt,
until the turn's deadline. Nothing of a failed attempt is kept, so no token is counted twice.

Refused here, before anything is sent: token ids outside the vocabulary and empty prompts (either
kills the whole engine process) and prompts that fill the context.
"""

import secrets
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from agentrl.clock import Clock, MonotonicClock
from agentrl.columns import CACHE_VERSIONS, Column
from agentrl.errors import EngineError, TokenError
from agentrl.models.routes import Routes
from agentrl.serving.attention_ranks import AttentionRanks
from agentrl.serving.key import authorization
from agentrl.serving.permits import Permits
from agentrl.serving.persistence import NOBODY_THERE, FailedError, until_answered
from agentrl.serving.routes import read_routes
from agentrl.serving.whole_turns import WholeTurns
from agentrl.types import EngineAddress, Generation, PermitStats, SamplingParams

__all__ = ["EngineClient"]

ROUTING_HEADER = "X-SMG-Routing-Key"
#: An abort is a courtesy to the engine: it must not hold up whoever gave the turn up.
_ABORT_TIMEOUT_S = 5.0
_FINISHED = ("stop", "length", "abort")


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _FinishReason(msgspec.Struct):
    type: str
    matched: int | str | None = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _FinishReason
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    weight_versions: list[_Span] = []
    num_retractions: int = 0
    routed_experts: str | None = None


class _Reply(msgspec.Struct):
    output_ids: list[int]
    meta_info: _MetaInfo


class _UnpublishedError(EngineError):
    """An engine has weights that no learner has published."""


class EngineClient:
    """Generates turns through the router at `router_url`. Own it with `async with`.

    engines         where aborts go
    vocab_size      token ids must be below it
    max_context     tokens of prompt and response together
    num_permits     turns in flight at once, over all engines
    turn_timeout_s  deadline of one generation, counted from the moment it holds a permit
    partial_rollout a turn goes on through pushes; without, it is sampled again (`whole_turns`)
    seeded          engines draw by the seed of each turn (--sglang-enable-deterministic-inference)
    unpublished     engines serve weights that no learner published: all tokens are of version 0
    waits_for_weights
                    an engine without published weights is about to get some, and is waited for
    key             what router and engines want to be shown
    routes          where the experts go that engines tell; None: they tell none
    attention_ranks groups of an engine's ranks that attend to requests of their own; turns with one
                    routing key go to one group
    cache_versions  so many versions in a row share a part of the cache, which engines keep over
                    pushes; None: a push drops the cache
    """

    def __init__(
        self,
        router_url: str,
        engines: Sequence[EngineAddress],
        *,
        vocab_size: int,
        max_context: int,
        num_permits: int,
        turn_timeout_s: float,
        partial_rollout: bool = True,
        seeded: bool = False,
        unpublished: bool = False,
        waits_for_weights: bool = False,
        key: str | None = None,
        routes: Routes | None = None,
        attention_ranks: int = 1,
        cache_versions: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._generate_url = _generate_url(router_url)
        self._engines = tuple(engines)
        self._has_pairs = any(engine.kind != "regular" for engine in engines)
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._turn_timeout_s = turn_timeout_s
        self._whole_turns = None if partial_rollout else WholeTurns()
        self._headers = authorization(key)
        self._routes = routes
        self._ranks = AttentionRanks(attention_ranks) if attention_ranks > 1 else None
        # Until the first push this client does not know what engines serve, so it shares no part.
        self._cache_part = f"since-{secrets.token_hex(8)}" if cache_versions else None
        self._cache_versions, self._cache_version = cache_versions, CACHE_VERSIONS.fill
        self._seeded = seeded
        self._versions = _no_versions if unpublished else _versions
        self._waits_for_weights = waits_for_weights
        self._permits = Permits(num_permits, clock or MonotonicClock())
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # Permits bound the connections, turns have their deadline: aiohttp's own limits are off.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._session.close()

    def new_weights(self, version: int) -> None:
        """All engines serve `version` now. Without partial rollout turns in flight are aborted and
        sampled again, under their permits. Call it after the push and never before: turns would
        fill the part of the cache that belongs to `version` with what older weights compute."""
        if self._cache_versions is not None:
            self._cache_version = version - version % self._cache_versions
            self._cache_part = f"version-{self._cache_version}"
        if self._whole_turns is not None:
            self._whole_turns.new_weights()

    def moved(self, engines: Sequence[EngineAddress]) -> None:
        """Aborts go to these from now on."""
        self._engines = tuple(engines)

    def at(self, engine: EngineAddress) -> None:
        """Turns and aborts go straight to this engine from now on."""
        self._generate_url, self._engines = _generate_url(engine.url), (engine,)

    def permit_stats(self) -> PermitStats:
        """Use of the permits since the last call."""
        return self._permits.stats()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """Sample one turn after `input_ids`.

        Turns with one `routing_key` go to one engine while it lives. The lowest `priority` gets the
        next permit. `max_new_tokens` is cut to what the context has left. A turn that somebody
        aborts on the engine ends with finish reason "abort" and what it had sampled.

        Raises TokenError for a prompt that must not be sent or that the engine refuses, EngineError
        when engines keep failing, answer nonsense, or none answers before the deadline.
        """
        ids = self._checked(input_ids, routing_key)
        sample = partial(self._persist, ids, sampling, routing_key)
        async with self._permits.hold(priority):
            if self._whole_turns is None:
                return await sample()
            return await self._whole_turns.take(sample)

    async def _persist(
        self, ids: list[int], sampling: SamplingParams, routing_key: str
    ) -> Generation:
        """Attempts, one after the other, until one is answered."""
        return await until_answered(
            partial(self._attempt, ids, sampling, routing_key),
            self._turn_timeout_s,
            f"a turn of {routing_key} missed its deadline of {self._turn_timeout_s:g} s and was "
            "aborted",
        )

    async def _attempt(
        self, ids: list[int], sampling: SamplingParams, routing_key: str
    ) -> Generation:
        request = secrets.token_hex(16)
        turn = f"turn {request} of {routing_key}"
        answered, cache_version = False, self._cache_version
        try:
            status, content = await self._send(
                self._body(request, ids, sampling, routing_key), routing_key
            )
            answered = True
        except (aiohttp.ClientError, OSError) as error:
            # A router that cannot be reached has taken nothing; else the turn was on its way.
            absent = isinstance(error, aiohttp.ClientConnectorError)
            raise FailedError(f"{turn} failed: {error!r}", is_absence=absent) from error
        finally:
            if not answered:
                await self._abort(request)
        if status != 200 and self._has_pairs:  # one engine of the pair has failed, and one goes on
            await self._abort(request)
        if status == 200:
            try:
                found = _generation(content, turn, self._versions, len(ids), self._routes)
            except _UnpublishedError as error:
                if self._waits_for_weights:
                    raise FailedError(str(error), is_absence=True) from error
                raise
            if self._cache_versions is not None:
                told = array(CACHE_VERSIONS.typecode, [cache_version]) * len(found.output_ids)
                found.columns[CACHE_VERSIONS] = told
            return found
        reason = f"{turn}: /generate answered {status}: {content[:500].decode(errors='replace')}"
        if 400 <= status < 500 and status not in (408, 429):
            raise TokenError(reason)
        raise FailedError(reason, is_absence=status in NOBODY_THERE)

    def _checked(self, input_ids: Sequence[int], routing_key: str) -> list[int]:
        ids = [int(token) for token in input_ids]
        if not ids:
            raise TokenError(f"turn of {routing_key} has an empty prompt")
        if len(ids) >= self._max_context:
            raise TokenError(
                f"turn of {routing_key} has {len(ids)} prompt tokens, and the context of"
                f" {self._max_context} leaves none to sample"
            )
        low, high = min(ids), max(ids)
        if low < 0 or high >= self._vocab_size:
            raise TokenError(
                f"turn of {routing_key} holds token id {low if low < 0 else high}, outside the"
                f" vocabulary of {self._vocab_size}"
            )
        return ids

    def _body(
        self, request: str, ids: list[int], sampling: SamplingParams, routing_key: str
    ) -> bytes:
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_new_tokens": min(sampling.max_new_tokens, self._max_context - len(ids)),
            "stop_token_ids": sampling.stop_token_ids,
        }
        if sampling.stop:
            params["stop"] = sampling.stop
        if sampling.min_p:
            params["min_p"] = sampling.min_p
        if self._seeded and sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        body: dict[str, Any] = {
            "rid": request,
            "input_ids": ids,
            "sampling_params": params,
            "return_logprob": True,
        }
        if self._cache_part is not None:
            body["extra_key"] = self._cache_part
        if self._ranks is not None:
            # By its old name, which the router passes on; it drops SGLang's new one.
            body["data_parallel_rank"] = self._ranks.of(routing_key)
        return msgspec.json.encode(body)

    async def _send(self, body: bytes, routing_key: str) -> tuple[int, bytes]:
        headers = {ROUTING_HEADER: routing_key, "Content-Type": "application/json"}
        url = self._generate_url
        async with self._session.post(url, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def _abort(self, request: str) -> None:
        """Only the router knows which engine has it: tell all; an unknown id is no error."""
        with anyio.move_on_after(_ABORT_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as group:
                for engine in self._engines:
                    group.start_soon(self._abort_on, engine, request)

    async def _abort_on(self, engine: EngineAddress, request: str) -> None:
        url = engine.url.rstrip("/") + "/abort_request"
        try:
            async with self._session.post(url, json={"rid": request}) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError):
            return  # an engine that is gone runs nothing


def _generate_url(server: str) -> str:
    return server.rstrip("/") + "/generate"


_Versions = Callable[[list[_Span], int, str], list[int]]


def _generation(
    content: bytes, turn: str, versions: _Versions, num_prompt: int, routes: Routes | None
) -> Generation:
    """The reply as agentrl's own words. Raises EngineError when it does not add up."""
    try:
        reply = msgspec.json.decode(content, type=_Reply)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EngineError(f"{turn}: the reply cannot be read: {error}") from error
    ids, meta = reply.output_ids, reply.meta_info
    logprobs = [entry[0] for entry in meta.output_token_logprobs if entry[0] is not None]
    if [entry[1] for entry in meta.output_token_logprobs] != ids or len(logprobs) != len(ids):
        raise EngineError(
            f"{turn}: {len(logprobs)} logprobs do not match {len(ids)} sampled tokens"
        )
    if meta.finish_reason.type not in _FINISHED:
        raise EngineError(f"{turn}: unknown finish reason {meta.finish_reason.type!r}")
    matched = meta.finish_reason.matched
    by_token = versions(meta.weight_versions, len(ids), turn)
    columns: dict[Column, Any] = {}
    if routes is not None and ids:
        fed = num_prompt + len(ids) - 1
        columns[routes.column] = read_routes(meta.routed_experts, fed, by_token, routes, turn)
    return Generation(
        output_ids=ids,
        logprobs=logprobs,
        versions=by_token,
        finish_reason=meta.finish_reason.type,
        matched=matched if isinstance(matched, int) else None,
        num_retractions=meta.num_retractions,
        columns=columns,
    )


def _versions(spans: list[_Span], num_tokens: int, turn: str) -> list[int]:
    """Weight version of each sampled token, from spans that must cover them in order."""
    versions: list[int] = []
    for span in spans:
        if not span.version.isdecimal():
            raise _UnpublishedError(_told(turn, span, len(versions)))
        if span.start != len(versions) or span.end < span.start:
            raise EngineError(_told(turn, span, len(versions)))
        versions += [int(span.version)] * (span.end - span.start)
    if len(versions) != num_tokens:
        raise EngineError(f"{turn}: versions of {len(versions)} of {num_tokens} tokens are known")
    return versions


def _told(turn: str, span: _Span, num_before: int) -> str:
    return (
        f"{turn}: tokens {span.start}..{span.end} claim weight version {span.version!r} after "
        f"{num_before} tokens; engines must serve only published weights"
    )


def _no_versions(spans: list[_Span], num_tokens: int, turn: str) -> list[int]:
    del spans, turn
    return [0] * num_tokens
