"""A user's functions, called as the run calls them, with all that they say and hear written down.

    run -> generate, reward_func of this file -> those of the user
    user's function -> a proxy that writes down -> the run's /generate

`hear` says for which functions; one example at a time.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

from agentrl.envs.slime_stand_in.misc import load_function
from scripts.slime_files.records import Asked, Given, Judged, Returned, timeless

__all__ = ["Heard", "Reply", "generate", "hear", "reward_func", "serving"]


class Heard:
    """What one episode said and heard."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.asked: list[Asked] = []
        self.outside: list[Asked] = []
        self.returned: list[Returned] = []
        self.judged: list[Judged] = []


class _Now:
    """The functions that are heard, and the episode."""

    generate: Callable[..., Any]
    reward: Callable[..., Any]
    heard = Heard()


def hear(generate: str, reward: str | None) -> Heard:
    """From now on hear these, by their dotted names, for a new episode."""
    _Now.generate = load_function(generate)
    if reward is not None:
        _Now.reward = load_function(reward)
    _Now.heard = Heard()
    return _Now.heard


async def generate(args: Any, sample: Any, sampling_params: Any, evaluation: bool) -> Any:
    """The user's, by way of the proxy."""
    heard = _Now.heard
    given = Given(sample.prompt, sample.label, sample.index, dict(sampling_params))
    heard.given.append(given)
    known = {}
    if "evaluation" in inspect.signature(_Now.generate).parameters:
        known["evaluation"] = evaluation
    who, _, host = args.sglang_router_ip.rpartition("@")
    async with serving(_passed_on(f"http://{host}:{args.sglang_router_port}"), heard.asked) as port:
        args.sglang_router_ip, args.sglang_router_port = f"{who}@127.0.0.1", port
        found = await _Now.generate(args, sample, sampling_params, **known)
    heard.returned += [_returned(one) for one in (found if isinstance(found, list) else [found])]
    return found


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The user's."""
    seen = (sample.prompt, sample.response, sample.label, _status(sample))
    reward = await _Now.reward(args, sample, **kwargs)
    _Now.heard.judged.append(Judged(*seen, reward))
    return reward


def _status(sample: Any) -> str:
    return str(getattr(sample.status, "value", sample.status))


def _returned(sample: Any) -> Returned:
    told = sample.rollout_log_probs
    return Returned(
        prompt=sample.prompt,
        tokens=list(sample.tokens),
        response_length=sample.response_length,
        response=sample.response,
        loss_mask=None if sample.loss_mask is None else list(sample.loss_mask),
        logprobs=None if told is None else list(told),
        status=_status(sample),
        reward=sample.reward,
        remove_sample=sample.remove_sample,
    )


#: Status and JSON of an answer to a request and its JSON.
Reply = Callable[[web.Request, Any], Awaitable[tuple[int, Any]]]


def _passed_on(address: str) -> Reply:
    async def reply(request: web.Request, body: Any) -> tuple[int, Any]:
        headers = {"Authorization": request.headers.get("Authorization", "")}
        async with (
            ClientSession() as session,
            session.request(
                request.method, f"{address}{request.path}", json=body, headers=headers
            ) as answer,
        ):
            return answer.status, await answer.json()

    return reply


@asynccontextmanager
async def serving(reply: Reply, asked: list[Asked], port: int = 0) -> AsyncIterator[int]:
    """A server of JSON on this host that writes down what it was asked, in that order; its port."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        place = len(asked)
        asked.append(Asked(request.path, body, None))
        status, answer = await reply(request, body)
        asked[place] = Asked(request.path, body, timeless(answer), status)
        return web.json_response(answer, status=status)

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
