"""The benchmark of objectives that need another model: its arms, its curves, its rows."""

import json
from pathlib import Path

import pytest

from agentrl.config.resolve import parse
from agentrl.errors import DataError
from benchmarks.curves import Curve
from benchmarks.objectives import (
    ARMS,
    DUE,
    ENDS,
    LAST,
    SHOWN,
    command,
    curve_of,
    model_of,
    picture,
    rows_of,
)
from scripts.default_job.places import MODEL_DIR


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_the_default_job_with_its_own_objective(arm: str, tmp_path: Path) -> None:
    model_of("grpo", 2, tmp_path).parent.mkdir()
    model_of("grpo", 2, tmp_path).symlink_to(MODEL_DIR)
    _, *flags = command(arm, 2, tmp_path)
    config = parse(flags, "train_async").config
    assert (config.num_rollout, config.async_buffer_size) == (LAST, 4)
    assert (config.seed, config.rollout_seed) == (2, 2)
    assert (config.advantage_estimator == "ppo") == (arm == "ppo")
    assert config.use_opd == (arm == "opd")


def test_the_teacher_is_what_the_first_arm_of_the_same_seed_became(tmp_path: Path) -> None:
    taught = command("grpo", 3, tmp_path)
    saved = taught[taught.index("--save-hf") + 1]
    pupil = command("opd", 3, tmp_path)
    assert pupil[pupil.index("--opd-teacher-load") + 1] == saved


def metrics(name: str = SHOWN["opd"]) -> str:
    evaluations = [
        {"step": i, "eval": {"heldout": {"score": i / 100, "version_min": i, "version_max": i,
                                         "failed": 0}}}
        for i in DUE
    ]  # fmt: skip
    steps = [
        {"step": i, "metrics": {"rollout/reward_mean": 0.5, name: 1 / i}}
        for i in range(1, LAST + 1)
    ]
    return "\n".join(map(json.dumps, [*evaluations, *steps]))


def test_a_run_has_its_scores_and_what_its_other_model_did() -> None:
    curve = curve_of(metrics(), "opd", 1)
    assert curve.scores == {i: i / 100 for i in DUE}
    assert len(curve.metrics[SHOWN["opd"]]) == LAST
    assert curve_of(metrics(), "grpo", 1).metrics == {}
    with pytest.raises(DataError, match="no score after"):
        curve_of(metrics().partition("\n")[2], "opd", 1)


def test_rows_are_means_over_seeds_with_their_bounds() -> None:
    curves = [curve_of(metrics(), "opd", seed) for seed in (1, 2)]
    rows = {row.metric: row.value for row in rows_of(curves)}
    assert rows["opd: seeds"] == 2
    assert rows["opd: before"] == 0
    assert rows["opd: end"] == rows["opd: end_low"] == rows["opd: end_high"] == LAST / 100
    first, last = (rows[f"opd: {SHOWN['opd']}, {end} {ENDS}"] for end in ("first", "last"))
    assert first == pytest.approx(sum(1 / i for i in range(1, ENDS + 1)) / ENDS, abs=1e-3)
    assert last < first
    assert not any(metric.startswith("ppo") for metric in rows)


def test_the_picture_has_every_arm_that_was_measured() -> None:
    curve = Curve(arm="grpo", seed=1, scores=dict.fromkeys(DUE, 0.5))
    assert 'id="grpo"' in picture([curve])
