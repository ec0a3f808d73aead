"""What the benchmark of weight pushes makes of a run's metrics and of the turns of its probes."""

import msgspec
import pytest

from agentrl.config.resolve import parse
from agentrl.telemetry.metrics import REGISTRY
from benchmarks import Row, push
from benchmarks.async_vs_sync import SPARE, Iteration
from benchmarks.probes import NEIGHBOURS, Turn, added_seconds
from benchmarks.push import WARMUP, Measured, measured, rows_of
from benchmarks.push_pairs import WAYS, rows_of_pairs

NAMES = ("perf/iteration_s", "perf/push_s", "perf/push_pause_s")


def line(step: int, time: float, *numbers: float) -> Iteration:
    return Iteration(step, time, dict(zip(NAMES, numbers, strict=True)))


#: Iteration 4 ends 10 s after iteration 3 and took 9.5 s of it: the push between took 0.5 s.
RUN = [
    line(2, 90.0, 1.0, 9.0, 9.0),
    line(3, 100.0, 1.0, 9.0, 9.0),
    line(4, 110.0, 9.5, 0.25, 0.125),
    line(5, 116.0, 5.0, 0.75, 0.5),
    line(6, 190.0, 1.0, 9.0, 9.0),
]


def turn(began: float, seconds: float, num_tokens: int = 40, versions: int = 1) -> Turn:
    return Turn(began, seconds, num_tokens, versions)


QUIET = [turn(100.0 + 0.1 * number, 2.0) for number in range(NEIGHBOURS)]


# ---- turns ---------------------------------------------------------------------------------------


def test_a_turn_is_compared_with_turns_of_its_own_length() -> None:
    short = [turn(0.0, 1.0, num_tokens=10) for _ in range(NEIGHBOURS)]
    long = [turn(0.0, 4.0, num_tokens=40) for _ in range(NEIGHBOURS)]
    met = [turn(0.0, 1.25, num_tokens=11, versions=2), turn(0.0, 5.0, num_tokens=39, versions=3)]
    assert added_seconds([*short, *met, *long]) == [0.25, 1.0]


def test_one_slow_neighbour_does_not_hide_what_a_push_cost() -> None:
    neighbours = [*QUIET[1:], turn(0.0, 100.0)]
    assert added_seconds([*neighbours, turn(0.0, 2.5, versions=2)]) == [0.5]


def test_a_turn_that_a_push_did_not_slow_down_counts_as_well() -> None:
    assert added_seconds([*QUIET, turn(0.0, 1.5, versions=2)]) == [-0.5]


@pytest.mark.parametrize(
    ("turns", "said"),
    [(QUIET, "0 turns met a push"), ([*QUIET[1:], turn(0.0, 2.5, versions=2)], "8 met none")],
)
def test_too_few_turns_tell_nothing(turns: list[Turn], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        added_seconds(turns)


# ---- pushes --------------------------------------------------------------------------------------


def test_a_push_is_what_lies_between_two_ends_beside_the_later_iteration() -> None:
    found = measured(RUN, [*QUIET, turn(105.0, 2.5, versions=2)], 5)
    assert found == Measured(
        pushes=[0.5, 1.0], calls=[0.25, 0.75], pauses=[0.125, 0.5], total_s=16.0, added=[0.5]
    )


def test_turns_before_and_after_the_measured_stretch_do_not_count() -> None:
    outside = [turn(99.0, 50.0, versions=2), turn(117.0, 50.0, versions=2)]
    assert measured(RUN, [*QUIET, turn(105.0, 2.5, versions=2), *outside], 5).added == [0.5]


@pytest.mark.parametrize("last", [7, 2])
def test_iterations_that_are_not_all_there_are_refused(last: int) -> None:
    with pytest.raises(ValueError, match=rf"are not {WARMUP}\.\.{last}"):
        measured(RUN, QUIET, last)


def test_rows_of_one_engine_have_the_plain_names() -> None:
    run = Measured([0.5, 1.0], [0.25, 0.75], [0.125, 0.5], 16.0, [0.5, 0.25])
    two = msgspec.structs.replace(run, pauses=[0.25, 0.4375])
    rows = {row.metric: row for row in rows_of({1: run, 2: two})}
    assert rows["push_p50_ms"] == Row("push_p50_ms", 500.0, "ms")
    assert rows["push_p99_ms"].value == 1000
    assert rows["added_turn_latency_p50_ms"].value == 250
    assert rows["added_turn_latency_p99_ms"].value == 500
    assert rows["push_share_1_engine"] == Row("push_share_1_engine", 0.0938, "share", "<= 0.03")
    assert rows["push_share_2_engines"] == Row("push_share_2_engines", 0.0938, "share")
    assert rows["second_engine_adds_in_a_run"].value == 0.1
    assert rows["push_calls_p50_ms"].value == 500
    assert rows["push_pause_p50_ms"].value == 312.5
    assert rows["turns_through_a_push"].value == 2
    assert rows["push_p50_ms_2_engines"].value == 500
    assert len(rows) == 2 * 8 + 1


def test_a_second_engine_is_held_against_the_push_of_its_own_pair() -> None:
    found = rows_of_pairs({1: [1.0, 2.0, 4.0], 2: [1.5, 2.2, 4.0]}, {1: [0.5] * 3, 2: [1.0] * 3})
    rows = {row.metric: row for row in found}
    assert rows["second_engine_adds"] == Row("second_engine_adds", 0.1, "share", "<= 0.1")
    assert rows["paired_pause_p50_ms_2"].value == 2200
    assert rows["memcpy_floor_p50_ms_1"].value == 500
    assert rows["pause_over_floor_1"].value == 4
    assert rows["pause_over_floor_2"].value == 2.2


# ---- the run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", push.ENGINES)
def test_the_measured_job_is_the_default_job_without_a_save_in_it(engines: int) -> None:
    config = parse(push.command(engines, 33), "train_async").config
    default = parse(["--async-buffer-size", "4"], "train_async").config
    a, b = msgspec.structs.asdict(config), msgspec.structs.asdict(default)
    differing = {name for name in a if a[name] != b[name]}
    allowed = {"num_rollout", "rollout_num_gpus", "save_interval", "skip_eval_before_train"}
    assert differing <= allowed
    assert config.num_engines == engines
    assert config.update_weights_interval == 1
    assert config.save_interval >= 33 + SPARE


def test_every_metric_that_is_read_is_one_that_runs_write() -> None:
    assert [name for name in NAMES if REGISTRY.find(name) is None] == []


def test_rows_of_pairs_through_memory_have_names_of_their_own() -> None:
    pauses, floors = {1: [1.0], 2: [1.1]}, {1: [0.5], 2: [1.0]}
    over_tcp, through_memory = (rows_of_pairs(pauses, floors, way) for way in WAYS)
    assert [row.metric for row in through_memory] == [f"{row.metric}_memory" for row in over_tcp]
