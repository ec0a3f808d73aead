"""The models that a run kept, which of them are scored, and scoring that was cut."""

from pathlib import Path

import pytest

from agentrl.errors import DataError
from scripts.default_job import control, kept, snapshots
from tests.unit.default_job_runs import write_run

INITIAL = Path("initial")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A complete run of 10 iterations that kept every second model and is not scored."""
    path = write_run(tmp_path / "r", scores=(0.0,) * 6)
    for iteration in range(2, 11, 2):
        (path / "models" / str(iteration)).mkdir(exist_ok=True)
    (path / "curve.json").unlink()
    return path


class Scorer:
    """Counts what is played; question i is right from iteration i on. Is cut where it is told."""

    def __init__(self, cut_at: str | None = None) -> None:
        self.played: list[str] = []
        self._cut_at = cut_at

    def __call__(self, model: Path) -> list[float]:
        if model.name == self._cut_at:
            raise KeyboardInterrupt
        self.played.append(model.name)
        iteration = 0 if model == INITIAL else int(model.name)
        return [float(number <= iteration) for number in range(12)]


def score(run: Path, iterations: list[int], scorer: Scorer) -> None:
    models = snapshots.models_of(run, INITIAL)
    curve = snapshots.begin(run, "heldout", 12, without_search=False)
    snapshots.complete(run, curve, models, kept.choose(iterations, models), scorer)


def test_models_are_known_by_their_iteration_and_half_written_ones_are_none(run: Path) -> None:
    (run / "models" / ".12.abc").mkdir()
    assert list(kept.kept_models(run)) == [2, 4, 6, 8, 10]
    assert kept.kept_models(run)[10] == run / "models" / "10"
    assert kept.kept_models(run / "nowhere") == {}


def curve_of(run: Path) -> kept.Curve:
    curve = kept.read_curve(run)
    assert curve is not None
    return curve


def test_scored_are_the_start_the_wanted_models_that_are_there_and_the_last() -> None:
    assert kept.choose([2, 3, 6, 40], [0, 2, 4, 6, 8, 10]) == [0, 2, 6, 10]
    assert kept.choose([], [2, 4]) == [0, 4]


def test_a_curve_holds_the_rewards_of_each_model_in_order(run: Path) -> None:
    score(run, [6, 2], Scorer())
    curve = curve_of(run)
    assert curve.questions == "heldout"
    assert {step: sum(rewards) for step, rewards in curve.rewards.items()} == {
        0: 1, 2: 3, 6: 7, 10: 11
    }  # fmt: skip


def test_scoring_that_was_cut_goes_on_where_it_was(run: Path) -> None:
    first, second, third = Scorer(cut_at="6"), Scorer(), Scorer()
    with pytest.raises(KeyboardInterrupt):
        score(run, [2, 4, 6], first)
    assert list(curve_of(run).rewards) == [0, 2, 4]
    score(run, [2, 4, 6], second)
    assert (first.played, second.played) == (["initial", "2", "4"], ["6", "10"])
    score(run, [2, 4, 6, 8], third)
    assert third.played == ["8"]
    assert list(curve_of(run).rewards) == [0, 2, 4, 6, 8, 10]


def test_a_curve_of_other_questions_is_not_added_to(run: Path) -> None:
    score(run, [2], Scorer())
    with pytest.raises(DataError, match=r"is of \[12\] questions .* asked for are 4 of heldout"):
        snapshots.begin(run, "heldout", 4, without_search=False)
    with pytest.raises(DataError, match="asked for are 12 of hard"):
        snapshots.begin(run, "hard", 12, without_search=False)
    with pytest.raises(DataError, match=r"without search: True\. Remove it"):
        snapshots.begin(run, "heldout", 12, without_search=True)


def test_a_run_that_is_not_complete_or_lost_its_last_model_is_not_scored(
    run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="is no run, not complete"):
        snapshots.models_of(tmp_path, INITIAL)
    cut = write_run(tmp_path / "cut", status="interrupted")
    with pytest.raises(DataError, match="is interrupted, not complete"):
        snapshots.models_of(cut, INITIAL)
    (run / "models" / "10").rmdir()
    with pytest.raises(DataError, match=r"no model of iteration 10, its last, only of \[2, 4, 6"):
        snapshots.models_of(run, INITIAL)


def test_a_broken_curve_is_refused(run: Path) -> None:
    (run / "curve.json").write_text('{"questions": "heldout"')
    with pytest.raises(DataError, match=r"curve.json cannot be read: .*; remove it"):
        kept.read_curve(run)


def test_the_control_keeps_its_models_as_a_run_of_rl_does(tmp_path: Path) -> None:
    flags = control.run_flags(tmp_path / "more-sft-0")
    assert flags == {
        "run-dir": tmp_path,
        "run-id": "more-sft-0",
        "save-hf": tmp_path / "more-sft-0" / "models" / "{rollout_id}",
        "save-interval": 2,
    }
