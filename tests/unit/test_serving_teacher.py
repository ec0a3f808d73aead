"""A served teacher, asked through its client: what it tells, and what is made of its silence."""

from typing import Any

import pytest

from agentrl.actors.failures import Failures
from agentrl.cluster.roles.worker import teacher_of
from agentrl.config.run import RunConfig
from agentrl.errors import EngineError
from agentrl.serving.teacher import TeacherClient
from agentrl.types import Outcome
from tests.unit.played_episodes import ASSIGNMENT
from tests.unit.teacher_server import BREAKS, TeacherServer, logprob_of

pytestmark = pytest.mark.anyio

IDS = [3, 1, 4, 1, 5, 9]


def told(*entries: tuple[float | None, int]) -> dict[str, Any]:
    return {"meta_info": {"input_token_logprobs": [[value, id_, None] for value, id_ in entries]}}


async def ask(server: TeacherServer, timeout_s: float = 300.0) -> list[float]:
    async with server.at() as url, TeacherClient(url, num_at_once=2, timeout_s=timeout_s) as client:
        return await client.logprobs(IDS, 3)


async def test_a_teacher_tells_of_each_token_and_samples_none() -> None:
    server = TeacherServer()
    async with server.at() as url:
        config = RunConfig(use_opd=True, opd_type="sglang", rm_url=url)
        client = teacher_of(config)
        assert client is not None
        async with client:
            assert await client.logprobs(IDS, 3) == [logprob_of(IDS, i) for i in (3, 4, 5)]
    (body,) = server.asked
    assert body["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}
    assert body["logprob_start_len"] == 2


async def test_a_teacher_that_comes_back_is_asked_again() -> None:
    server = TeacherServer(503, 500)
    assert await ask(server) == [logprob_of(IDS, i) for i in (3, 4, 5)]
    assert len(server.asked) == 3


async def test_a_teacher_that_is_away_for_too_long_is_an_engine_that_failed() -> None:
    late = r"--rm-url.* missed its deadline .*answered 503: not now"
    with pytest.raises(EngineError, match=late):
        await ask(TeacherServer(*[503] * 100), timeout_s=1.0)
    async with TeacherClient("http://127.0.0.1:9", num_at_once=1, timeout_s=0.5) as client:
        with pytest.raises(EngineError, match="missed its deadline"):
            await client.logprobs(IDS, 3)
    with pytest.raises(EngineError, match=r"answered 500: not now \(4 attempts\)"):
        await ask(TeacherServer(*[500] * 100))


async def test_credentials_of_the_address_stand_in_no_error() -> None:
    for url in ("http://me:secret@127.0.0.1:9", "http://me:secret@:x"):
        async with TeacherClient(url, num_at_once=1, timeout_s=0.5) as client:
            with pytest.raises(EngineError) as caught:
                await client.logprobs(IDS, 3)
        assert "secret" not in str(caught.value)


async def test_tokens_that_a_teacher_refuses_are_not_sent_again_and_no_env_is_blamed() -> None:
    server = TeacherServer(400, 400)
    refused = r"the teacher .*answered 400: not now \(of 6 tokens\)"
    with pytest.raises(EngineError, match=refused) as caught:
        await ask(server)
    assert len(server.asked) == 1
    report = Failures().report(ASSIGNMENT, caught.value, 0.0).report
    assert report.outcome is Outcome.ENGINE_ERROR
    assert "(--rm-url) answered 400" in str(report.error)


async def test_tokens_that_break_a_teacher_are_sent_four_times() -> None:
    """Who takes a request and closes the connection is there: the deadline is not waited for."""
    server = TeacherServer(*[BREAKS] * 100)
    with pytest.raises(EngineError, match=r"failed: .*Disconnected.* \(4 attempts\)"):
        await ask(server, timeout_s=60.0)
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    "reply",
    [
        {"meta_info": {}},
        told((None, 4), (-1.0, 1), (-1.0, 5)),
        told((None, 4), (-1.0, 1), (-1.0, 5), (-1.0, 8)),
        told((None, 4), (None, 1), (-1.0, 5), (-1.0, 9)),
    ],
    ids=["nothing", "too few", "other tokens", "one untold"],
)
async def test_a_reply_that_does_not_add_up_is_no_reply(reply: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"cannot be read|do not match"):
        await ask(TeacherServer(reply))
