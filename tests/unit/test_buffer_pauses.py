"""The pause before an episode's last attempt: what is away for a while takes no group with it."""

from agentrl.buffer import BufferCore, BufferSettings
from agentrl.buffer.events import Tick
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.settings import RETRY_PAUSE_S
from agentrl.config.run import RunConfig
from agentrl.types import Fate, Outcome, SamplingParams
from agentrl.wire.messages import Cancel, Capacity, Drain, Heartbeat, PeerLost, TaskCredit
from tests.unit.buffer_bench import Bench, bench

PAUSE_S = 30.0
RESTART_S = 20.0


def paused_bench(ahead: int = 0) -> Bench:
    """One episode in a group, one group in a batch, `ahead` batches ahead; the first is minted."""
    made = bench(
        rollout_batch_size=1,
        n_samples_per_prompt=1,
        async_buffer_size=ahead,
        max_staleness=ahead,
        retry_pause_s=PAUSE_S,
    )
    made.offer(1)
    return made


def pass_time(b: Bench, seconds: float, *peers: str) -> None:
    """Time passes in steps of a second; these peers and the worker are heard."""
    for _ in range(round(seconds)):
        b.now += 1.0
        for peer in ("driver.1", "learner.1", *(peers or ("w0.1",))):
            b.say(peer, Heartbeat())
        b.do(Tick())


def fail_twice(b: Bench) -> None:
    for _ in range(2):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)


def test_a_run_pauses_at_least_as_long_as_a_process_needs_to_start_again() -> None:
    config = RunConfig(actor_num_gpus_per_node=1)
    settings = BufferSettings.from_config(config, "ipc:///tmp/none", SamplingParams())
    assert settings.retry_pause_s == RETRY_PAUSE_S >= 30.0


def test_a_service_that_comes_back_in_time_costs_no_group() -> None:
    b = paused_bench(ahead=2)
    b.offer(2)
    for _ in range(60):
        outcome = Outcome.ENGINE_ERROR if b.now < RESTART_S else Outcome.DONE
        b.play_all("w0.1", outcome=outcome)
        pass_time(b, 1)
    assert b.core.state.fates == {}
    assert len(b.core.state.ready) == 3


def test_a_first_failure_is_tried_again_at_once_and_a_second_after_the_pause() -> None:
    b = paused_bench()
    fail_twice(b)
    assert b.assigned("w0.1") == []
    pass_time(b, PAUSE_S - 1)
    assert b.assigned("w0.1") == []
    pass_time(b, 1)
    (last,) = b.assigned("w0.1")
    assert last.id.attempt == 2
    b.finish("w0.1", last.id, outcome=Outcome.ENGINE_ERROR)
    assert b.core.state.fates == {Fate.ENGINE_ERROR: 1}


def test_workers_that_die_one_after_the_other_do_not_take_an_episode_with_them() -> None:
    b = paused_bench()
    for incarnation in (1, 2):
        assert len(b.assigned(f"w0.{incarnation}")) == 1
        b.say("driver.1", PeerLost("w0"))
        b.join("w0", "worker", str(incarnation + 1))
        b.say(f"w0.{incarnation + 1}", Capacity(4))
    b.say("driver.1", PeerLost("w0"))
    b.join("w0", "worker", "4")
    b.say("w0.4", Capacity(4))
    pass_time(b, PAUSE_S, "w0.4")
    (last,) = b.assigned("w0.4")
    b.finish("w0.4", last.id)
    assert b.core.state.fates == {}


def test_an_environment_that_fails_is_tried_again_at_once() -> None:
    b = paused_bench()
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, outcome=Outcome.ENV_ERROR)
    assert len(b.assigned("w0.1")) == 1


def test_nothing_more_is_minted_while_an_attempt_pauses() -> None:
    b = paused_bench()
    fail_twice(b)
    b.take("driver.1", TaskCredit)
    pass_time(b, PAUSE_S - 1)
    assert b.core.state.charged == 1
    assert b.core.stats()["queued"] == 1
    assert b.take("driver.1", TaskCredit) == []


def test_a_younger_episode_does_not_wait_for_one_that_pauses() -> None:
    b = paused_bench(ahead=1)
    fail_twice(b)
    b.offer(1)
    (younger,) = b.assigned("w0.1")
    assert younger.mint == 2


def test_a_drain_ends_a_pause_at_once() -> None:
    b = paused_bench()
    fail_twice(b)
    b.say("driver.1", Drain("enough"))
    assert b.core.state.fates == {Fate.CANCELLED: 1}
    assert b.core.stats()["queued"] == 0
    pass_time(b, 2 * PAUSE_S)
    assert b.assigned("w0.1") == []


def test_an_interrupted_run_gives_nothing_out_when_a_pause_ends() -> None:
    b = paused_bench()
    fail_twice(b)
    b.say("driver.1", Drain("interrupted", resumable=True))
    pass_time(b, PAUSE_S)
    assert b.assigned("w0.1") == []


def restart(b: Bench, incarnation: str) -> None:
    """Another buffer goes on with the rows of this one, and peers come back to it."""
    state = b.core.state
    rows = LedgerState(
        groups=tuple(state.groups.values()),
        episodes=tuple(state.episodes.values()),
        versions=tuple(state.lineage.rows.values()),
        peers=tuple(peer.row for peer in b.core.peers),
        minted=state.minted,
        cursor=state.cursor,
    )
    b.core = BufferCore(state.settings, rows, b.now)
    b.join("driver", "driver")
    b.join("learner", "learner")
    b.join("w0", "worker", incarnation)
    b.say(f"w0.{incarnation}", Capacity(4))


def test_a_restarted_buffer_lets_the_same_attempt_wait_for_a_whole_pause() -> None:
    b = paused_bench()
    fail_twice(b)
    pass_time(b, PAUSE_S - 1)
    restart(b, "1")
    pass_time(b, PAUSE_S - 1)
    assert b.assigned("w0.1") == []
    pass_time(b, 2)
    assert len(b.assigned("w0.1")) == 1


def test_to_be_interrupted_is_no_failure_of_an_episode() -> None:
    b = paused_bench()
    for incarnation in range(1, 6):
        worker = f"w0.{incarnation}"
        (episode,) = b.assigned(worker)
        b.say("driver.1", Drain("interrupted", resumable=True))
        (cancelled,) = b.take(worker, Cancel)
        assert cancelled.episodes == [episode.id]
        assert b.assigned(worker) == []
        restart(b, str(incarnation + 1))
    assert b.core.state.episodes[1, 0].num_failures == 0
    assert b.told("failures") == []
