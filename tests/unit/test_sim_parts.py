"""The parts of the simulator, on numbers worked out by hand."""

import statistics

import pytest

from agentrl.errors import ConfigError
from agentrl.sim import Lognormal, Plan, Scenario, Speed, Workload
from agentrl.sim.engine import Engine, SimTurn
from agentrl.sim.fleet import SimFleet
from agentrl.sim.network import Connection, Network
from agentrl.sim.timeline import Timeline
from agentrl.sim.truth import PublishedWeights

SPEED = Speed(token_s=1.0, request_s=0.5)


# ---- time ----


def test_actions_happen_in_order_of_time_and_then_of_planning() -> None:
    timeline, seen = Timeline(), list[tuple[str, float]]()
    for name, seconds in (("late", 3.0), ("first", 1.0), ("second", 1.0)):
        timeline.after(seconds, lambda name=name: seen.append((name, timeline.now)))  # type: ignore[misc]
    timeline.after(2.0, lambda: seen.append(("never", 0.0))).cancel()
    timeline.after(4.0, timeline.stop)
    timeline.run()
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 3.0)]


def test_a_time_in_which_nothing_can_happen_is_a_deadlock() -> None:
    with pytest.raises(RuntimeError, match="nothing is planned"):
        Timeline().run()


# ---- workload ----


def test_a_group_depends_on_seed_and_position_alone() -> None:
    work = Workload(turns=8)
    assert work.group(3, 5, 8) == work.group(3, 5, 8)
    assert work.group(3, 5, 8) != work.group(3, 6, 8)
    assert work.group(3, 5, 8) != work.group(4, 5, 8)


def test_episodes_follow_the_laws_of_their_workload() -> None:
    work = Workload(turns=8, tool_s=Lognormal(10.0, 1.5))
    plans = [plan for position in range(400) for plan in work.group(0, position, 8)]
    assert statistics.median(plan.num_tokens for plan in plans) == pytest.approx(1500, rel=0.1)
    assert max(plan.num_tokens for plan in plans) == 16_000
    assert statistics.mean(len(plan.turns) for plan in plans) == pytest.approx(7.9, rel=0.05)
    assert max(len(plan.turns) for plan in plans) == 24
    tools = [tool for plan in plans for tool in plan.tools]
    assert statistics.median(tools) == pytest.approx(10.0, rel=0.05)
    assert all(len(plan.tools) == len(plan.turns) - 1 for plan in plans)
    assert all(min(plan.turns) > 0 for plan in plans)


def test_siblings_share_the_difficulty_of_their_task() -> None:
    groups = [Workload().group(0, position, 8) for position in range(400)]
    means = [statistics.mean(plan.num_tokens for plan in group) for group in groups]
    alone = Workload(task_sigma=0.0)
    same = [alone.group(0, position, 8) for position in range(400)]
    equal = [statistics.mean(plan.num_tokens for plan in group) for group in same]
    assert statistics.stdev(means) > 1.5 * statistics.stdev(equal)


def test_a_recorded_group_gives_the_tokens_and_turns_of_a_group() -> None:
    work = Workload(played=(((9, 3), (4, 1)), ((100, 1),)), tool_s=Lognormal(2.0, 0.0))
    groups = [work.group(0, position, 4) for position in range(50)]
    shapes = {frozenset((plan.num_tokens, len(plan.turns)) for plan in group) for group in groups}
    assert shapes <= {frozenset(s) for s in ({(9, 3), (4, 1)}, {(9, 3)}, {(4, 1)}, {(100, 1)})}
    assert {plan.tools for group in groups for plan in group} == {(2.0, 2.0), ()}
    assert Workload(played=(((1, 3),),)).group(0, 0, 1)[0].turns == (1, 1, 1)


def test_an_episode_alone_takes_its_tokens_and_its_tools() -> None:
    assert Plan((10, 20), (3.0,)).alone_s(0.5) == 18.0


# ---- engine ----


def wait(timeline: Timeline, seconds: float) -> None:
    timeline.after(seconds, timeline.stop)
    timeline.run()


class Reply:
    """A turn and what became of it."""

    def __init__(self, timeline: Timeline, num_tokens: int) -> None:
        self.at: float | None = None
        self.spans: list[tuple[int, int]] = []
        self.failed = False
        self._timeline = timeline
        self.turn = SimTurn(num_tokens, self._done, self._fail)

    def _done(self, spans: list[tuple[PublishedWeights, int]]) -> None:
        self.at = self._timeline.now
        self.spans = [(weights.version, tokens) for weights, tokens in spans]

    def _fail(self) -> None:
        self.failed = True


def test_turns_share_an_engine_and_slow_each_other_down() -> None:
    timeline = Timeline()
    engine = Engine(timeline, SPEED)
    engine.resume(PublishedWeights(0, 0))
    long, short = Reply(timeline, 10), Reply(timeline, 3)
    engine.submit(long.turn)
    wait(timeline, 6.0)  # 4 tokens of 1.5 s
    engine.submit(short.turn)
    wait(timeline, 20.0)
    assert short.at == pytest.approx(12.0)  # 3 tokens of 2 s
    assert long.at == pytest.approx(16.5)  # 4 + 3 tokens, then 3 of 1.5 s
    engine.measure()
    assert engine.busy_s == pytest.approx(16.5)


def test_a_push_stops_the_batch_and_splits_the_tokens_of_a_turn() -> None:
    timeline = Timeline()
    engine = Engine(timeline, SPEED)
    engine.resume(PublishedWeights(0, 0))
    reply = Reply(timeline, 10)
    engine.submit(reply.turn)
    wait(timeline, 5.0)  # 3 tokens and a third
    engine.pause()
    wait(timeline, 3.0)
    engine.resume(PublishedWeights(1, 1))
    wait(timeline, 20.0)
    assert reply.spans == [(0, 3), (1, 7)]
    assert reply.at == pytest.approx(18.0)


def test_a_turn_that_is_cancelled_leaves_its_room_to_the_others() -> None:
    timeline = Timeline()
    engine = Engine(timeline, SPEED)
    engine.resume(PublishedWeights(0, 0))
    kept, cancelled = Reply(timeline, 6), Reply(timeline, 6)
    engine.submit(kept.turn)
    engine.submit(cancelled.turn)
    wait(timeline, 4.0)  # 2 tokens each
    engine.cancel(cancelled.turn)
    wait(timeline, 20.0)
    assert kept.at == pytest.approx(10.0)
    assert cancelled.at is None


def test_a_lost_engine_fails_its_turns_and_its_successor_has_the_current_weights() -> None:
    timeline = Timeline()
    fleet = SimFleet(timeline, SPEED, 1)
    fleet.end_push(PublishedWeights(7, 7))
    first = fleet.route(None)
    assert first is not None
    reply = Reply(timeline, 5)
    first.submit(reply.turn)
    first.lose()
    assert reply.failed
    assert fleet.route(first) is None
    called = []
    fleet.when_there_is_one(lambda: called.append(timeline.now))
    wait(timeline, 2.0)
    fleet.restart(0)
    assert called == [2.0]
    second = fleet.route(first)
    assert second is not None
    again = Reply(timeline, 5)
    second.submit(again.turn)
    wait(timeline, 10.0)
    assert again.spans == [(7, 5)]


def test_an_episode_stays_with_its_engine_and_a_new_one_goes_where_fewest_are() -> None:
    fleet = SimFleet(Timeline(), SPEED, 3)
    homes = [fleet.route(None) for _ in range(3)]
    assert {id(home) for home in homes} == {id(engine) for engine in fleet.engines}
    assert fleet.route(homes[1]) is homes[1]
    assert [engine.load for engine in fleet.engines] == [1, 1, 1]


# ---- network ----


def told(connection: Connection, timeline: Timeline) -> list[tuple[str, float]]:
    """Ten messages each way; what arrives is written down as it does, with its moment."""
    seen = list[tuple[str, float]]()
    for number in range(10):
        for name, lane in (("up", connection.up), ("down", connection.down)):
            word = f"{name} {number}"
            lane.carry(lambda word=word: seen.append((word, timeline.now)))  # type: ignore[misc]
    return seen


def words(seen: list[tuple[str, float]], way: str) -> list[str]:
    return [word for word, _ in seen if word.startswith(way)]


def test_without_delay_a_message_arrives_at_once() -> None:
    timeline = Timeline()
    seen = told(Network(timeline, 0.0, "").connect(), timeline)
    assert len(seen) == 20
    assert {moment for _, moment in seen} == {0.0}


def test_late_messages_of_one_connection_keep_their_order_and_those_of_two_do_not() -> None:
    timeline = Timeline()
    network = Network(timeline, 1.0, "seed")
    first, second = (told(network.connect(), timeline) for _ in range(2))
    assert network.num_on_their_way == 40
    wait(timeline, 100.0)
    for seen in (first, second):
        for way in ("up", "down"):
            assert words(seen, way) == [f"{way} {number}" for number in range(10)]
    assert network.num_on_their_way == 0
    assert first[0][1] > 0
    together = sorted(
        (moment, who) for who, seen in enumerate((first, second)) for _, moment in seen
    )
    assert [who for _, who in together] not in ([0] * 20 + [1] * 20, [1] * 20 + [0] * 20)


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_a_connection_that_stands_still_keeps_everything_in_order(delay_s: float) -> None:
    timeline = Timeline()
    connection = Network(timeline, delay_s, "seed").connect()
    connection.stand_still()
    seen = told(connection, timeline)
    wait(timeline, 100.0)
    assert seen == []
    connection.go_on()
    assert words(seen, "up") == [f"up {number}" for number in range(10)]
    assert {moment for _, moment in seen} == {100.0}


def test_a_cut_loses_all_that_is_on_its_way_down_and_some_of_what_goes_up() -> None:
    timeline = Timeline()
    connection = Network(timeline, 1.0, "seed").connect()
    old = told(connection, timeline)
    connection.cut()
    new = told(connection, timeline)
    wait(timeline, 100.0)
    assert 0 < len(words(old, "up")) < 10
    assert words(old, "down") == []
    assert len(new) == 20
    assert max(old, key=lambda seen: seen[1])[1] > min(new, key=lambda seen: seen[1])[1]


# ---- scenario ----


def test_an_iteration_costs_its_steps_and_its_tokens_shared_by_the_gpus() -> None:
    scenario = Scenario(num_steps_per_rollout=2, num_learner_gpus=4)
    assert scenario.iteration_s(1000) == 2 * 960 / 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_staleness": 1, "update_weights_interval": 3}, "S = 1 is below I - 1 = 2"),
        ({"num_engines": 0}, "0 engines and 8 GPUs of the learner"),
    ],
)
def test_a_scenario_that_can_train_nothing_is_refused(changed: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Scenario(**changed)  # type: ignore[arg-type]


def test_all_workers_together_can_hold_all_that_may_be_minted() -> None:
    scenario = Scenario(num_agent_workers=3, rollout_batch_size=5, async_buffer_size=2)
    most = scenario.most_charged * scenario.n_samples_per_prompt
    assert scenario.num_agent_workers * scenario.max_concurrent_episodes >= most
