"""`remote_rm`: a reward model over HTTP, and what becomes of an episode when it is down."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from agentrl.envs.env import late_reward
from agentrl.envs.grading.judging import JudgeSpec, judged
from agentrl.envs.grading.post import post
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.rewards.remote_rm import _remembered
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import EnvError, InfrastructureError
from agentrl.visible import shown_url

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    _remembered.clear()


@asynccontextmanager
async def listening(
    answer: Callable[[Any], web.Response], path: str = ""
) -> AsyncIterator[tuple[str, list[Any]]]:
    """A reward model that answers so at `path` below its address; what it was asked."""
    asked: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return answer(len(asked))

    app = web.Application()
    app.router.add_post(path or "/", take)
    async with served(app) as url:
        yield url, asked


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """The address of an application that listens."""
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_a_reward_model_is_asked_and_its_answer_is_the_reward() -> None:
    async with listening(lambda _: web.json_response(0.75)) as (url, asked):
        flags: dict[str, Any] = {"rm_type": "remote_rm", "rm_url": url}  # --rm-url
        env = SingleTurnEnv(**flags)
        await env.reset(seed=0, task={"input": "2+2?", "label": 4})
        step = await env.step(AssistantTurn("4", [], None, "stop", 0, "hm"))
    assert step.reward == 0.75
    response = "<think>\nhm\n</think>\n\n4"
    assert asked == [{"prompt": "2+2?", "response": response, "label": 4}]


async def test_the_same_answer_to_the_same_prompt_is_sent_once() -> None:
    async with listening(lambda number: web.json_response(number)) as (url, asked):
        env = SingleTurnEnv(rm_type="remote_rm", rm_url=url)
        worths = []
        for label, text in [("4", "a"), ("4", "a"), ("4", "b"), ("5", "a"), ("4", "a")]:
            await env.reset(seed=0, task={"input": "q", "label": label})
            worths.append((await env.step(AssistantTurn(text, [], None, "stop", 0))).reward)
    assert worths == [1, 1, 2, 3, 1]
    assert len(asked) == 3


async def test_a_reward_model_that_is_down_is_asked_anew() -> None:
    def answer(number: int) -> web.Response:
        return web.json_response(0.5) if number > 1 else web.Response(status=422)

    async with listening(answer) as (url, _):
        env = SingleTurnEnv(rm_type="remote_rm", rm_url=url)
        await env.reset(seed=0, task={"input": "q"})
        with pytest.raises(EnvError, match="answered 422"):
            await env.step(AssistantTurn("a", [], None, "stop", 0))
        assert (await env.step(AssistantTurn("a", [], None, "stop", 0))).reward == 0.5


async def test_its_answer_may_be_a_dict() -> None:
    async with listening(lambda _: web.json_response({"score": 2, "why": "x"})) as (url, _):
        env = SingleTurnEnv(rm_type="remote_rm", rm_url=url, reward_key="score")
        await env.reset(seed=0, task={"input": "q"})
        step = await env.step(AssistantTurn("4", [], None, "stop", 0))
    assert (step.reward, step.metrics) == (2.0, {"reward.score": 2.0})


async def test_a_model_that_is_down_for_a_moment_is_asked_again() -> None:
    def later(asked: int) -> web.Response:
        return web.json_response(1) if asked == 3 else web.Response(status=503)

    async with listening(later) as (url, asked):
        assert await post(url, {}, pause_s=0.001) == 1
    assert len(asked) == 3


async def test_requests_under_way_together_share_connections_and_the_last_closes_them() -> None:
    ports: list[int] = []
    last = anyio.Event()

    async def take(request: web.Request) -> web.Response:
        ports.append(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        if await request.json() == "wait":
            await last.wait()
        return web.json_response(1)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    url = f"http://{host}:{port}"
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(post, url, "wait")
            await anyio.wait_all_tasks_blocked()
            for n in range(4):
                await post(url, n)
            last.set()
        assert len(ports) == 5
        assert len(set(ports)) == 2
        await post(url, 5)
        assert ports[-1] not in ports[:-1]
    finally:
        await runner.cleanup()


async def test_a_model_that_stays_down_is_no_reward() -> None:
    async with listening(lambda _: web.Response(status=500, text="no memory")) as (url, asked):
        with pytest.raises(InfrastructureError, match=r"asked 2 times and is down: .*no memory"):
            await post(url, {}, attempts=2, pause_s=0.001)
    assert len(asked) == 2
    with pytest.raises(InfrastructureError, match="is down"):  # nobody listens there any more
        await post(url, {}, attempts=2, pause_s=0.001)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:secret@host:80/a?key=secret#secret", "http://host:80/a"),
        ("me:secret@host/a", "host/a"),
        ("https://[::1]:8/v1", "https://[::1]:8/v1"),
        ("http://me:sec/ret@host/a", "http://host/a"),
        ("http://me:sec/r?t@host/a?b", "http://host/a"),
        ("http://me:s#cret@host", "http://[hidden]"),
        ("http://me:s?cret@host/a", "http://[hidden]"),
        ("http://me:1#s/cret@host", "http://[hidden]"),
        ("http://me:secret@host?a=b", "http://host"),
        ("http://host/v1/@m/score", "http://host/v1/@m/score"),
        ("http://host/a?mail=b@c", "http://host/a"),
    ],
)
def test_an_address_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert shown_url(url) == shown


async def test_credentials_of_an_address_stand_in_no_error() -> None:
    secret = "?key=secret"
    async with listening(lambda _: web.Response(status=422)) as (url, _):
        known = url.replace("://", "://me:secret@") + secret
        with pytest.raises(EnvError, match="answered 422") as refused:
            await post(known, {})
    with pytest.raises(InfrastructureError, match="is down") as down:
        await post(known, {}, attempts=1)
    with pytest.raises(InfrastructureError, match="is down") as bad:
        await post(f"http://me:secret@:x{secret}", {}, attempts=1)
    async with listening(lambda _: web.json_response({}), "/chat/completions") as (url, _):
        known = url.replace("://", "://me:secret@")
        with pytest.raises(EnvError, match="no chat completion") as silent:
            await judged(known, JudgeSpec(), "q", None, "a")
    for error in (refused, down, bad, silent):
        assert "secret" not in str(error.value), error.value


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (web.Response(status=422, text="no field `text`"), "answered 422: no field `text`"),
        (web.Response(text="fine"), "answered no JSON"),
    ],
)
async def test_a_request_that_is_refused_is_not_made_again(answer: web.Response, said: str) -> None:
    async with listening(lambda _: answer) as (url, asked):
        with pytest.raises(EnvError, match=said):
            await post(url, {})
    assert len(asked) == 1


async def test_a_reward_model_is_not_asked_everything_at_once() -> None:
    """It answers nobody before 64 have asked, and sees no further one meanwhile."""
    under_way, most, full = 0, 0, anyio.Event()

    async def take(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way >= 64:
            full.set()
        await full.wait()
        await anyio.sleep(0.01)
        under_way -= 1
        return web.json_response(0.5)

    async def ask(url: str) -> None:
        assert await post(url, {}) == 0.5

    app = web.Application()
    app.router.add_post("/", take)
    async with served(app) as url, anyio.create_task_group() as group:
        for _ in range(200):
            group.start_soon(ask, url)
    assert most == 64


async def test_a_reward_model_that_never_answers_is_infrastructure() -> None:
    """So the episode is tried again; it is never a reward of 0."""
    async with listening(lambda _: web.json_response(0.5)) as (url, _):
        pass
    env = SingleTurnEnv(rm_type="remote_rm", rm_url=url)
    await env.reset(seed=0, task={"input": "2+2?", "label": 4})
    assert isinstance(late_reward(env, "within 1 s"), InfrastructureError)
    own = SingleTurnEnv(rm_type="math")
    await own.reset(seed=0, task={"input": "2+2?", "label": 4})
    assert isinstance(late_reward(own, "within 1 s"), EnvError)
