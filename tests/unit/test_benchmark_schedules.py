"""What the benchmark of schedules makes of simulated runs."""

from typing import Any

import msgspec

from agentrl.sim import SETUPS, Result
from benchmarks import Row, schedules


def result(**changes: Any) -> Result:
    zeros = {field.name: 0 for field in msgspec.structs.fields(Result)}
    return msgspec.convert(zeros | {"iteration_s": 100.0} | changes, Result)


def found(**changes: Any) -> schedules.Found:
    """Two seeds of everything, the asynchronous ones changed."""
    made: schedules.Found = {}
    for name in SETUPS:
        for schedule in schedules.SCHEDULES:
            more = changes if schedule == schedules.MAIN else {}
            made[name, schedule] = [result(**more), result(**more)]
    return made


def test_the_share_of_a_step_in_which_the_learner_trains_stands_beside_that_of_verl() -> None:
    rows = {row.metric: row for row in schedules.rows_of(found(learner_busy=0.97))}
    for name in SETUPS:
        metric = f"learner_busy_{name}"
        assert rows[metric] == Row(metric, 0.97, "share", "verl: 0.75 to 0.91")
