"""The driver between a scripted buffer and processes that exist on paper: what it makes of news, of
a ledger that is older than itself, and of a buffer that dies before it has told everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from agentrl.cluster.supervision import MAX_RESTARTS
from agentrl.errors import AgentRLError, EnvironmentSetupError, HealthError, RestartsSpentError
from agentrl.types import Task
from agentrl.wire.messages import Drain, Evaluate, Event, PeerLost
from tests.integration.paper_cluster import playing
from tests.unit.recorder_ground import step_data


def test_a_first_push_whose_event_died_with_the_buffer_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with playing(tmp_path) as (play, start):
            await start()
            play.welcome(published_version=0, fates={"trained": 3})
            await play.buffer.die()
            await play.buffer.live()
            await play.learner_ends()
            assert play.failure is None
            assert play.summary is not None
            assert play.summary.fates == {"trained": 3}

    anyio.run(main)


def test_a_node_that_hangs_at_the_start_ends_the_run_after_its_deadline_by_name(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with playing(tmp_path, start_timeout_s=0.2) as (play, start):
            play.cluster.hung = "worker-0"
            with anyio.move_on_after(20):
                await start()
                await play.ended.wait()
            assert isinstance(play.failure, EnvironmentSetupError)
            said = "worker-0 has not started on 10.0.0.1 within 0.2 s (--start-timeout-s): the node"
            assert str(play.failure).startswith(said)

    anyio.run(main)


def test_failures_of_long_ago_do_not_end_a_run_that_is_continued(tmp_path: Path) -> None:
    async def main() -> None:
        async with playing(tmp_path, continued=True) as (play, start):
            play.welcome(fates={"env_error": 40}, stepped=9, last_lease=9)
            await start()
            await play.published(8, 9)
            await play.tell("fates", counts={"env_error": 41})
            await play.learner_ends()
            assert play.failure is None

    anyio.run(main)


def test_iterations_that_are_trained_once_more_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with playing(tmp_path, continued=True) as (play, start):
            play.welcome(stepped=3, last_lease=3)
            await start()
            for number in (2, 3):
                await play.tell("step", **step_data(number))
            await play.published(8, 3)
            await play.tell("step", **step_data(4))
            await play.learner_ends()
            assert play.failure is None

    anyio.run(main)
    said = capsys.readouterr()
    told = (
        "iterations 2 to 3 are trained once more, on the rows that they had: the newest checkpoint"
    )
    assert (said.out + said.err).count(told) == 1


def test_failures_that_a_buffer_could_not_tell_of_end_the_run_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with playing(tmp_path) as (play, start):
            await start()
            play.welcome(fates={"env_error": 32})
            await play.buffer.die()
            await play.buffer.live()
            await play.ended.wait()
            assert isinstance(play.failure, HealthError)

    anyio.run(main)


def test_a_last_score_is_of_the_iterations_that_were_made_before_the_driver_was(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        sets = {"held": [Task("1", {})]}
        async with playing(tmp_path, continued=True, eval_sets=sets) as (play, start):
            data = {"id": "held@20-pinned", "name": "held", "n": 1, "failed": 0, "score": 0.5}
            play.buffer.answers[Evaluate] = Event(
                "evaluation", data | {"version_min": 21, "version_max": 21}
            )
            play.welcome(stepped=20, last_lease=20, fates={"poison": 1, "trained": 320})
            await start()
            await play.published(21, 20)
            await play.learner_ends()
            assert play.failure is None
            assert play.summary is not None
            assert [score.step for score in play.summary.eval["held"]] == [20]

    anyio.run(main)


@pytest.mark.parametrize("skips", [True, False])
def test_sets_are_played_before_the_first_iteration_unless_that_is_skipped(
    tmp_path: Path, skips: bool
) -> None:
    async def main() -> None:
        sets, flags = {"held": [Task("1", {})]}, {"skip_eval_before_train": skips}
        async with playing(tmp_path, eval_sets=sets, **flags) as (play, start):
            data = {"id": "held@0-pinned", "name": "held", "n": 1, "failed": 0, "score": 0.5}
            score = Event("evaluation", data | {"version_min": 0, "version_max": 0})
            play.buffer.answers[Evaluate] = score
            await start()
            await play.published(0, 0)
            await play.learner_ends()
            assert play.failure is None
            # the one after the last iteration is never skipped
            assert play.buffer.evaluated == ["held@0-pinned"] * (1 if skips else 2)

    anyio.run(main)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_worker_is_killed_for_its_own_silence_alone(tmp_path: Path, fresh: bool) -> None:
    """It died with the buffer, which heard of its successor first and then of its end."""

    async def main() -> None:
        async with playing(tmp_path) as (play, start):
            await start()
            cluster, buffer = play.cluster, play.buffer
            old = cluster.pids["worker-0"]
            cluster.end("worker-0", -9)
            await buffer.until_heard(PeerLost)
            new = await cluster.next_start()
            told = [message for message in buffer.said if isinstance(message, PeerLost)]
            assert told[0] == PeerLost("worker-0", cluster.incarnations[old])
            meant = cluster.incarnations[new if fresh else old]
            about = {"name": "worker-0", "role": "worker", "incarnation": meant}
            await play.tell("peer", **about, state="lost")
            await play.published(0, 0)
            await play.learner_ends()
            assert cluster.killed == ([new] if fresh else [])

    anyio.run(main)


@pytest.mark.anyio
async def test_processes_are_started_again_however_many_slots_are_waited_for(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path, num_slots=50) as (play, start):
        await start()
        play.cluster.end("worker-0", -9)
        await play.cluster.next_start()
        await play.published(0, 0)
        await play.learner_ends()
        assert play.failure is None


@pytest.mark.anyio
async def test_leases_that_end_the_learner_are_told_and_the_last_word_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with playing(tmp_path) as (play, start):
        await start()
        await play.published(0, 0)
        for life in range(1, MAX_RESTARTS + 2):
            groups = ["00000021", "00000022"] if life <= 3 else ["00000025"]
            deaths = (life - 1) % 3 + 1
            tasks = ["t1", "t2"][: len(groups)]
            about = {"number": 9, "deaths": deaths, "groups": groups, "tasks": tasks}
            await play.tell("lease_failed", **about, given_up=deaths == 3)
            play.cluster.end("learner-0", 70)
            if life <= MAX_RESTARTS:
                await play.cluster.next_start()
        await play.ended.wait()
    assert isinstance(play.failure, RestartsSpentError)
    assert play.failure.told == (
        "learner-0 ended 6 times without a new iteration: the learner ended 3 times in lease 9"
        " (groups 00000021 of task t1, 00000022 of task t2) and the learner ended 3 times in"
        " lease 9 (groups 00000025 of task t1)"
    )
    told = [message for message in play.buffer.said if isinstance(message, PeerLost)]
    assert len({message.incarnation for message in told if message.failed}) == MAX_RESTARTS + 1
    said = capsys.readouterr().out
    assert "lease 9 ended the learner 3 times: its groups are given up" in said
    assert "00000022 of task t2" in said


@pytest.mark.anyio
@pytest.mark.parametrize("code", [2, 3, 4, 64, 65])
async def test_bad_data_that_ends_the_learner_is_told_and_its_lease_named(
    tmp_path: Path, code: int
) -> None:
    """It ends the run at once; of what else does so no lease is the cause."""
    async with playing(tmp_path) as (play, start):
        await start()
        await play.published(0, 0)
        about = {"number": 9, "deaths": 1, "groups": ["00000021"], "tasks": ["t1"]}
        await play.tell("lease_failed", **about, given_up=False)
        play.cluster.end("learner-0", code)
        await play.ended.wait()
        mine = play.cluster.incarnations[play.cluster.pids["learner-0"]]
    counted = [m for m in play.buffer.said if isinstance(m, PeerLost)]
    assert counted == ([PeerLost("learner-0", mine, failed=True)] if code == 65 else [])
    assert isinstance(play.failure, AgentRLError)
    assert play.failure.exit_code == (65 if code == 64 else code)
    named = "the learner ended once in lease 9 (groups 00000021 of task t1); one that ends it"
    assert (named in str(play.failure)) is (code == 65)


@pytest.mark.anyio
async def test_a_learner_that_is_killed_ever_again_ends_the_run_with_the_groups_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the kernel says that memory was wanting, the end counts."""
    async with playing(tmp_path) as (play, start):
        await start()
        await play.published(0, 0)
        about = {"number": 1, "groups": ["00000001", "00000002"], "tasks": ["t1", "t2"]}
        for life in range(1, MAX_RESTARTS + 2):
            await play.tell("lease_left", **about)
            play.cluster.end("learner-0", -9, out_of_memory=life == 2)
            if life <= MAX_RESTARTS:
                await play.cluster.next_start()
        await play.ended.wait()
    assert isinstance(play.failure, RestartsSpentError)
    assert play.failure.told == (
        "learner-0 ended 6 times without a new iteration: the learner ended in lease 1 (groups"
        " 00000001 of task t1, 00000002 of task t2), which may not be why"
    )
    told = [m.failed for m in play.buffer.said if isinstance(m, PeerLost)]
    assert told == [life == 2 for life in range(1, MAX_RESTARTS + 2)]
    said = capsys.readouterr().out
    assert said.count("ended with -9, and the kernel has killed for want of memory") == 1


@asynccontextmanager
async def answering() -> AsyncIterator[str]:
    """A router without engines, and an engine that is well."""
    app = web.Application()

    async def workers(request: web.Request) -> web.Response:
        return web.json_response({"workers": []})

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app.router.add_get("/workers", workers)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.anyio
async def test_an_engine_that_dies_in_the_last_evaluation_is_given_the_weights_again(
    tmp_path: Path,
) -> None:
    sets = {"held": [Task("1", {})]}
    async with answering() as url, playing(tmp_path, eval_sets=sets) as (play, start):
        play.engine_url, cluster = url, play.cluster
        await start()
        await play.published(1, 1)
        cluster.end("learner-0", 0)
        await play.buffer.until_heard(Evaluate)
        first = cluster.pids["learner-0"]
        cluster.end("engine-0", -9)
        assert await cluster.next_start() == cluster.pids["engine-0"]
        assert await cluster.next_start() == cluster.pids["learner-0"] != first
        await play.published(2, 1)
        scored = {"id": "held@1-pinned", "name": "held", "n": 1, "failed": 0, "score": 0.5}
        await play.tell("evaluation", **scored, version_min=2, version_max=2)
        about = {"name": "worker-0", "role": "worker", "state": "lost"}
        await play.tell(
            "peer",
            **about,
            incarnation=cluster.incarnations[cluster.pids["worker-0"]],
        )
        await play.buffer.until_heard(PeerLost)
        # All is heard, and nothing ends: the learner has not ended again yet.
        assert not any(isinstance(message, Drain) for message in play.buffer.said)
        await play.learner_ends()
        assert play.failure is None
        assert play.summary is not None
        assert [score.version_min for score in play.summary.eval["held"]] == [2]
