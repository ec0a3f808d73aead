"""`TeacherClient`: what a served teacher thinks of tokens that the policy sampled.

The teacher is an SGLang server that nobody trains (`--opd-type sglang`). It is given a trajectory's
token ids and samples nothing: its answer has the log-probability of each token that it read.
A server that dies and comes back is waited for until the deadline. What does not add up is an
error: no token ever gets a number that the teacher did not say.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from agentrl.errors import EngineError
from agentrl.serving.persistence import NOBODY_THERE, FailedError, until_answered
from agentrl.visible import shown_url

__all__ = ["TeacherClient", "server_of"]

_GENERATE = "/generate"


class _MetaInfo(msgspec.Struct):
    input_token_logprobs: list[tuple[float | None, int, Any]]


class _Reply(msgspec.Struct):
    meta_info: _MetaInfo


def server_of(rm_url: str) -> str:
    """The server that `--rm-url` names, by itself or, as in slime, with the path of its requests:
    `http://10.0.0.1:13141`."""
    return rm_url.rstrip("/").removesuffix(_GENERATE)


class TeacherClient:
    """Asks the server of `rm_url`. Own it with `async with`.

    num_at_once     trajectories that the teacher reads at once for this client
    timeout_s       deadline of one trajectory, from the moment it is sent
    """

    def __init__(self, rm_url: str, *, num_at_once: int, timeout_s: float) -> None:
        self._url = server_of(rm_url) + _GENERATE
        self._shown = shown_url(self._url)
        self._timeout_s = timeout_s
        self._permits = anyio.Semaphore(num_at_once)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # The permits bound the connections, requests have their deadline: aiohttp's limits are off.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._session.close()

    async def logprobs(self, ids: Sequence[int], first: int) -> list[float]:
        """The log-probability of each token from place `first` on (at least 1), given those before
        it, at temperature 1.

        Raises EngineError (retryable) when the teacher refuses the tokens, keeps failing, answers
        nonsense, or is not there before the deadline: no Env is to blame for any of these.
        """
        body = msgspec.json.encode(
            {
                "input_ids": list(ids),
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                "return_logprob": True,
                # Where it begins to tell: of the first token there it tells nothing.
                "logprob_start_len": first - 1,
            }
        )
        async with self._permits:
            return await until_answered(
                partial(self._attempt, body, list(ids)[first:], len(ids)),
                self._timeout_s,
                f"the teacher {self._shown} (--rm-url) missed its deadline of {self._timeout_s:g} s"
                " (--turn-timeout-s)",
            )

    async def _attempt(self, body: bytes, asked: list[int], num_read: int) -> list[float]:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(self._url, data=body, headers=headers) as answer:
                status, content = answer.status, await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            # Who cannot be reached is away; who took the request and broke off may do so again.
            absent = isinstance(error, aiohttp.ClientConnectorError)
            said = repr(error).replace(self._url, self._shown)
            raise FailedError(
                f"the teacher {self._shown} (--rm-url) failed: {said}", is_absence=absent
            ) from error
        if status == 200:
            return self._read(content, asked)
        said = content[:500].decode(errors="replace")
        reason = f"the teacher {self._shown} (--rm-url) answered {status}: {said}"
        if 400 <= status < 500 and status not in (408, 429):
            raise EngineError(f"{reason} (of {num_read} tokens)")
        raise FailedError(reason, is_absence=status in NOBODY_THERE)

    def _read(self, content: bytes, asked: list[int]) -> list[float]:
        try:
            entries = msgspec.json.decode(content, type=_Reply).meta_info.input_token_logprobs
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise EngineError(
                f"the reply of the teacher {self._shown} (--rm-url) cannot be read: {error}"
            ) from error
        entries = entries[-len(asked) :]
        told = [entry[0] for entry in entries if entry[0] is not None and math.isfinite(entry[0])]
        if [entry[1] for entry in entries] != asked or len(told) != len(asked):
            raise EngineError(
                f"the teacher {self._shown} (--rm-url) told {len(told)} log-probabilities that do "
                f"not match the {len(asked)} tokens it was asked about"
            )
        return told
