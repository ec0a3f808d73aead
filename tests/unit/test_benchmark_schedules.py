"""What the benchmark of schedules makes of simulated runs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

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


def test_the_page_names_a_cell_for_each_head() -> None:
    head, _, *lines = schedules.table(found(learner_busy=0.975, learner_idle=0.01)).splitlines()
    names = [cell.strip() for cell in head.split("|")]
    assert {line.count("|") for line in lines} == {head.count("|")}
    (cells,) = {
        tuple(cell.strip() for cell in line.split("|"))
        for line in lines
        if "| single turn | async" in line
    }
    assert cells[names.index("learner busy")] == "97.5%"
    assert cells[names.index("learner idle")] == "1%"


def test_the_template_has_a_place_for_every_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "PAGE", tmp_path / "schedules.md")
    schedules.write_page(found(), [1, 2], "python -m benchmarks.schedules")
    text = " ".join((tmp_path / "schedules.md").read_text().split())
    assert "a share of 0.75 to 0.91, on hardware" in text
