"""`sft_loss`: which labels have a loss, at what weight, and that it is the mean it claims to be."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Outputs
from agentrl.columns import COLUMNS, EXCLUDED
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.batch import BatchRules, build_sequence, micro_batch
from agentrl.learner.measures import Measures, measured
from agentrl.learner.plan import StepPlan, plan_iteration
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.lineage import Lineage
from agentrl.types import (
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    SpanKind,
    TrajectoryMeta,
    TrajectoryRow,
)

C, U, D = SpanKind.CONTROL, SpanKind.UNTRUSTED, SpanKind.DEMONSTRATION


def dialogue(
    group: str, kinds: list[SpanKind], excluded: str = ""
) -> tuple[TrajectoryRow, Trajectory]:
    """`excluded`: a 1 for each token that is not imitated."""
    num, more = len(kinds), (EXCLUDED,) if excluded else ()
    columns: dict[str, list[Any]] = {
        "tokens": list(range(num)),
        "kinds": kinds,
        "logprobs": [0.0] * num,
        "versions": [-1] * num,
        "turns": [-1] * num,
    }
    left = sum(k is D and out != "1" for k, out in zip(kinds, excluded or "0" * num, strict=True))
    meta = TrajectoryMeta(num, 0, 1, 0.0, [], num_demonstrated=left, columns=more)
    row = TrajectoryRow(EpisodeId(group, 0), meta, PayloadRef("s", 0, 0, 1, 0))
    buffers = [np.array(columns[name], dtype=c.dtype).tobytes() for name, c in COLUMNS.items()]
    buffers += [bytes(map(int, excluded))] if excluded else []
    return row, decode_trajectory(row, buffers, more)


def step_of(rows: list[TrajectoryRow], **changes: Any) -> tuple[Algorithm, StepPlan]:
    groups = [
        GroupRows(row.episode.group, i, "t", [row.episode], [0.0], [{}], [row])
        for i, row in enumerate(rows)
    ]
    config = RunConfig(loss_type="sft_loss", rollout_batch_size=len(rows), **changes)
    algorithm = load_algorithm(config)
    (plan,) = plan_iteration(LeaseHeader(1, groups), algorithm, 1)
    return algorithm, plan


def loss_of(
    dialogues: list[tuple[TrajectoryRow, Trajectory]], **changes: Any
) -> tuple[float, Measures]:
    """The loss when the log-probability of label t of every dialogue is -(t + 1)."""
    algorithm, plan = step_of([row for row, _ in dialogues], **changes)
    by_episode = {row.episode: trajectory for row, trajectory in dialogues}
    (shard,) = plan.shards
    rules = BatchRules(1, Lineage(), algorithm)
    rows = [build_sequence(each, by_episode[each.row.episode], rules).row for each in shard]
    algorithm.advantages(rows, list)
    batch = micro_batch(rows)
    logprobs_T = -(batch.positions_T + 1).float()
    loss, sums = algorithm.loss("policy", batch, Outputs(logprobs_T, torch.zeros_like(logprobs_T)))
    return float(loss), measured(sums)


TWO = [dialogue("a", [C, U, D, D]), dialogue("b", [C, D, U, D, D, D])]


def test_only_demonstrated_labels_have_a_loss_by_default() -> None:
    # Labels 1..3 of the first and 1..5 of the second; label t stands at position t - 1.
    first, second = (2 + 3), (1 + 3 + 4 + 5)
    loss, sums = loss_of(TWO, calculate_per_token_loss=True)
    assert loss == pytest.approx((first + second) / 6)
    assert sums["nll"] == pytest.approx((first + second, 6))


def test_the_default_is_the_mean_over_dialogues_of_their_means() -> None:
    loss, _ = loss_of(TWO)
    assert loss == pytest.approx((5 / 2 + 13 / 4) / 2)


def test_context_counts_at_its_weight_in_loss_and_denominator() -> None:
    loss, sums = loss_of(TWO, calculate_per_token_loss=True, prompt_loss_weight=0.25)
    shown, read = 18.0, 1 + 2
    assert loss == pytest.approx((shown + 0.25 * read) / (6 + 0.25 * 2))
    assert sums["nll"][0] == pytest.approx(shown)


def test_a_dialogue_has_a_loss_though_its_reward_teaches_nothing() -> None:
    _, plan = step_of([row for row, _ in TWO])
    assert [planned.credit.value for shard in plan.shards for planned in shard] == [0.0, 0.0]


def test_a_turn_that_its_row_masks_is_context_in_loss_and_denominator() -> None:
    """The first turn of the second dialogue: label 1, at position 0."""
    masked = [TWO[0], dialogue("b", [C, D, U, D, D, D], excluded="010000")]
    loss, _ = loss_of(masked, calculate_per_token_loss=True)
    assert loss == pytest.approx((5 + 3 + 4 + 5) / 5)
    loss, _ = loss_of(masked, calculate_per_token_loss=True, prompt_loss_weight=0.25)
    assert loss == pytest.approx((17 + 0.25 * (1 + 1 + 2)) / (5 + 0.25 * 3))


def test_a_row_that_counts_a_masked_turn_as_demonstrated_is_damaged() -> None:
    row, _ = dialogue("b", [C, D, D], excluded="010")
    wrong = msgspec.structs.replace(row, meta=msgspec.structs.replace(row.meta, num_demonstrated=2))
    buffers = [
        np.zeros(3, dtype=c.dtype).tobytes() if name != "kinds" else bytes([C, D, D])
        for name, c in COLUMNS.items()
    ]
    with pytest.raises(DataError, match="1 demonstrated tokens, its row says 2"):
        decode_trajectory(wrong, [*buffers, bytes([0, 1, 0])], (EXCLUDED,))
