"""A teacher whose log-probabilities workers wrote stands in for one in the learner's ranks."""

import numpy as np
import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Credit, Row
from agentrl.columns import TEACHER_LOGPROBS
from agentrl.config.run import RunConfig
from agentrl.types import EpisodeId, GroupRows, PayloadRef, TrajectoryMeta, TrajectoryRow

TRAINED = np.array([False, True, True, False, True, False])
SERVED = {"opd_type": "sglang", "rm_url": "http://teacher"}


def advantages(column: str, **flags: object) -> np.ndarray:
    """Of one trajectory whose teacher's log-probabilities stand in `column`."""
    random = np.random.default_rng(0)
    told = random.uniform(-3, 0, 6).astype(np.float32)
    columns = {
        "mask": TRAINED,
        "turns": np.zeros(6, np.int16),
        "prox": random.uniform(-3, 0, 6).astype(np.float32),
        "mu": random.uniform(-3, 0, 6).astype(np.float32),
        column: np.where(TRAINED, told, TEACHER_LOGPROBS.fill).astype(np.float32),
    }
    meta = TrajectoryMeta(6, 3, 1, 0.0, [(0, 3)])
    row = TrajectoryRow(EpisodeId("g", 0), meta, PayloadRef("s", 0, 0, 0, 0))
    found = Row(row, Credit(0.5), np.zeros(6, np.int32), columns)
    algorithm = load_algorithm(RunConfig(use_opd=True, **flags))  # type: ignore[arg-type]
    algorithm.advantages([found], lambda sums: list(sums))
    result: np.ndarray = found.columns["advantages"]
    return result


@pytest.mark.parametrize(
    "flags",
    [{}, {"opd_kl_coef": 0.3, "use_rollout_logprobs": True}, {"normalize_advantages": True}],
)
def test_a_served_teacher_teaches_what_the_learners_own_does(flags: dict[str, object]) -> None:
    of_pass = advantages("teacher", **flags)
    of_column = advantages(TEACHER_LOGPROBS.name, **SERVED, **flags)
    assert np.array_equal(of_pass[TRAINED], of_column[TRAINED])
    assert len(set(of_column[TRAINED].tolist())) == 3


def test_episodes_without_an_advantage_are_computed_for_a_teacher() -> None:
    group = GroupRows("g", 1, "t", [EpisodeId("g", i) for i in range(2)], [0.0, 0.0], [{}, {}], [])
    for flags in ({}, SERVED):
        algorithm = load_algorithm(RunConfig(use_opd=True, **flags))  # type: ignore[arg-type]
        assert [credit.skip for credit in algorithm.credit(group)] == [False, False]


def test_a_served_teacher_needs_its_column_and_no_model() -> None:
    needs = load_algorithm(RunConfig(use_opd=True, **SERVED)).needs  # type: ignore[arg-type]
    assert needs.columns == (TEACHER_LOGPROBS,)
    assert needs.passes == {"prox"}
    assert load_algorithm(RunConfig(use_opd=True)).needs.passes == {"prox", "teacher"}
