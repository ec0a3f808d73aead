"""From lease header and columns to micro-batches: shards, denominators, alignment, masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import (
    TAKEN,
    TEMPERATURES,
    Credit,
    Row,
    first_turns,
    num_turns,
)
from agentrl.columns import CACHE_VERSIONS, COLUMNS, EXCLUDED
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.batch import (
    BatchCounts,
    BatchRules,
    TrainSequence,
    build_sequence,
    micro_batch,
    pack,
)
from agentrl.learner.plan import PlannedRow, plan_iteration
from agentrl.learner.rows import decode_trajectory
from agentrl.lineage import Lineage
from agentrl.types import (
    EpisodeFacts,
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    SpanKind,
    TrajectoryMeta,
    TrajectoryRow,
    VersionRow,
)

C, S, U = SpanKind.CONTROL, SpanKind.SAMPLED, SpanKind.UNTRUSTED
EXAMPLE: dict[str, list[Any]] = {
    "tokens": [10, 11, 12, 13, 14, 15, 16, 17],
    "kinds": [C, C, S, S, U, S, S, C],
    "logprobs": [0, 0, -0.2, -0.3, 0, -0.5, -0.6, 0],
    "versions": [-1, -1, 0, 1, -1, 1, 2, -1],
    "turns": [-1, -1, 0, 0, 0, 1, 1, 1],
}


def row_of(
    columns: dict[str, list[Any]], group: str = "g", index: int = 0, **changes: Any
) -> TrajectoryRow:
    sampled = [
        v for v, kind in zip(columns["versions"], columns["kinds"], strict=True) if kind == S
    ]
    facts: dict[str, Any] = {
        "num_tokens": len(columns["tokens"]),
        "num_sampled": len(sampled),
        "num_turns": len({t for t in columns["turns"] if t >= 0}),
        "reward": 0.0,
        "versions": [(v, sampled.count(v)) for v in sorted(set(sampled))],
    }
    meta = TrajectoryMeta(**(facts | changes))
    return TrajectoryRow(EpisodeId(group, index), meta, PayloadRef("s", 0, 0, 100, 0))


def buffers_of(columns: dict[str, list[Any]]) -> list[bytes]:
    return [np.array(columns[name], dtype=c.dtype).tobytes() for name, c in COLUMNS.items()]


def response(num_sampled: int, prompt: int = 2) -> dict[str, list[Any]]:
    """A prompt and one turn of `num_sampled` tokens of version 0."""
    return {
        "tokens": list(range(prompt + num_sampled)),
        "kinds": [C] * prompt + [S] * num_sampled,
        "logprobs": [0.0] * prompt + [-1.0] * num_sampled,
        "versions": [-1] * prompt + [0] * num_sampled,
        "turns": [-1] * prompt + [0] * num_sampled,
    }


def header_of(groups: Sequence[Sequence[Sequence[int]]]) -> LeaseHeader:
    """groups[g][e] lists the sampled tokens of each trajectory of episode e; rewards are e."""
    made = []
    for g, episodes in enumerate(groups):
        name = f"g{g}"
        made.append(
            GroupRows(
                group=name,
                mint=g,
                task=f"t{g}",
                episodes=[EpisodeId(name, e) for e in range(len(episodes))],
                rewards=[float(e) for e in range(len(episodes))],
                metrics=[{} for _ in episodes],
                trajectories=[
                    row_of(response(n), name, e) for e, sizes in enumerate(episodes) for n in sizes
                ],
            )
        )
    return LeaseHeader(number=1, groups=made)


def rules(number: int = 3, max_staleness: int = 2, mask_off_policy: bool = False) -> BatchRules:
    lineage = Lineage()
    for version in range(3):
        lineage.add(VersionRow(version, version - 1 if version else None, version))
    cfg = RunConfig(max_staleness=max_staleness, mask_offpolicy_in_partial_rollout=mask_off_policy)
    return BatchRules(number, lineage, load_algorithm(cfg))


def example_sequence(**rule_changes: Any) -> TrainSequence:
    row = row_of(EXAMPLE)
    planned = PlannedRow(row, Credit(1.5), weight=0.25)
    chosen = rules(**rule_changes)
    sequence = build_sequence(planned, decode_trajectory(row, buffers_of(EXAMPLE)), chosen)
    chosen.algorithm.advantages([sequence.row], list)
    return sequence


def test_columns_stand_under_the_label_they_describe() -> None:
    columns = example_sequence().row.columns
    assert columns["mask"].tolist() == [False, True, True, False, True, True, False, False]
    assert columns["sampled"].tolist() == columns["mask"].tolist()
    assert columns["mu"] == pytest.approx([0, -0.2, -0.3, 0, -0.5, -0.6, 0, 0])
    assert columns["ages"].tolist() == [-1, 2, 1, -1, 1, 0, -1, -1]
    assert set(columns["advantages"].tolist()) == {1.5}
    assert set(columns["weights"].tolist()) == {0.25}


def test_tokens_are_told_by_how_much_the_cache_that_they_read_may_be_older() -> None:
    row = row_of(EXAMPLE)
    row = replace(row, meta=replace(row.meta, columns=(CACHE_VERSIONS,)))
    kept = rules()
    cfg = replace(kept.algorithm.cfg, kv_across_pushes="keep")
    kept = BatchRules(kept.number, kept.lineage, load_algorithm(cfg))
    assert kept.fetched == (EXCLUDED, CACHE_VERSIONS)
    assert rules().fetched == (EXCLUDED,)
    told = np.array([-1, -1, 0, 0, -1, 1, -1, -1], "<i4")  # of the last one nobody knows
    buffers = [*buffers_of(EXAMPLE), told.tobytes()]
    trajectory = decode_trajectory(row, buffers, (CACHE_VERSIONS,))
    columns = build_sequence(PlannedRow(row, Credit(1.0), 1.0), trajectory, kept).row.columns
    assert columns["cached"].tolist() == [-1, 0, 1, -1, 0, -1, -1, -1]
    assert "cached" not in example_sequence().row.columns


def test_tokens_of_a_part_bring_the_temperature_of_their_part() -> None:
    parts = {"cool": 0.5, "hot": 1.5}
    groups = [
        replace(group, facts=[EpisodeFacts(part=part)] * 2)
        for group, part in zip(header_of([[[3], [3]], [[2], [2]]]).groups, parts, strict=True)
    ]
    usual = rules()
    chosen = BatchRules(usual.number, usual.lineage, usual.algorithm, temperatures=parts)
    (plan,) = plan_iteration(LeaseHeader(number=3, groups=groups), chosen.algorithm, 1)
    found = {}
    for planned in plan.shards[0]:
        size = planned.row.meta.num_sampled
        trajectory = decode_trajectory(planned.row, buffers_of(response(size)))
        found[planned.part] = build_sequence(planned, trajectory, chosen).row.columns
    other = BatchRules(3, usual.lineage, usual.algorithm, temperatures={"mild": 0.7})
    with pytest.raises(DataError, match=r"is of part '\w+', and --env-mix has mild: its temp"):
        build_sequence(planned, trajectory, other)
    assert {*found["cool"][TEMPERATURES].tolist()} == {0.5}
    assert found["hot"][TEMPERATURES].tolist() == [1.5] * 4
    assert TEMPERATURES not in example_sequence().row.columns


def test_what_the_env_excluded_is_not_trained_and_nothing_else_changes() -> None:
    row = row_of(EXAMPLE)
    row = replace(row, meta=replace(row.meta, columns=(EXCLUDED,)))
    first_turn = bytes(turn == 0 for turn in EXAMPLE["turns"])
    trajectory = decode_trajectory(row, [*buffers_of(EXAMPLE), first_turn], (EXCLUDED,))
    sequence = build_sequence(PlannedRow(row, Credit(1.5), weight=0.25), trajectory, rules())
    whole = example_sequence().row.columns
    found = sequence.row.columns
    assert found["mask"].tolist() == [False] * 4 + [True, True, False, False]
    for name in found.keys() - {"mask"}:
        assert found[name].tolist() == whole[name].tolist()
    counts = sequence.counts
    assert (counts.num_trained, counts.num_masked, counts.num_masked_turns) == (2, 2, 1)
    assert (counts.num_stale, counts.num_off_policy) == (0, 0)


def test_rows_have_no_column_of_a_name_that_may_be_given_away() -> None:
    assert example_sequence().row.columns.keys() <= TAKEN


def test_tokens_beyond_the_bound_leave_the_mask_and_are_counted_by_token_and_turn() -> None:
    sequence = example_sequence(max_staleness=0)
    assert sequence.row.columns["mask"].tolist() == [False] * 5 + [True] + [False] * 2
    assert sequence.row.columns["sampled"].sum() == 4
    assert sequence.counts == BatchCounts(
        num_trained=1, num_masked=3, num_stale=3, num_turns=2, num_masked_turns=2
    )
    assert sequence.max_trained_age == 0


def test_off_policy_turns_are_masked_when_asked() -> None:
    sequence = example_sequence(mask_off_policy=True)
    assert (
        sequence.row.columns["mask"].tolist()
        == [False, False, True, False, False, True] + [False] * 2
    )
    assert sequence.counts.num_off_policy == 2
    assert sequence.counts.num_masked_turns == 2


def masked_by(cls: type[Algorithm], value: float | tuple[float, ...] = 1.0) -> TrainSequence:
    row = row_of(EXAMPLE)
    chosen = BatchRules(3, rules().lineage, cls(RunConfig(max_staleness=1), None))
    trajectory = decode_trajectory(row, buffers_of(EXAMPLE))
    sequence = build_sequence(PlannedRow(row, Credit(value), 0.25), trajectory, chosen)
    chosen.algorithm.advantages([sequence.row], list)
    return sequence


def test_turns_are_counted_through_the_segments_of_a_role() -> None:
    def row(episode: EpisodeId, role: str, segment: int, turns: int) -> TrajectoryRow:
        meta = TrajectoryMeta(9, 4, turns, 0.0, [(0, 4)], role, segment=segment)
        return TrajectoryRow(episode, meta, row_of(EXAMPLE).payload)

    first, second = EpisodeId("g", 0), EpisodeId("g", 1)
    rows = [
        row(first, "policy", 1, 2),
        row(first, "policy", 0, 3),
        row(first, "critic", 0, 1),
        row(second, "policy", 0, 4),
    ]
    group = GroupRows("g", 1, "t", [first, second], [0.0, 1.0], [{}, {}], rows)
    assert first_turns(group) == [3, 0, 0, 0]
    assert num_turns(group) == [5, 4]


def test_credit_of_turns_reaches_a_later_segment() -> None:
    planned = PlannedRow(row_of(EXAMPLE), Credit((9.0, 2.0, 3.0)), 0.25, first_turn=1)
    sequence = build_sequence(planned, decode_trajectory(planned.row, buffers_of(EXAMPLE)), rules())
    rules().algorithm.advantages([sequence.row], list)
    assert sequence.row.columns["advantages"].tolist() == [0, 2, 2, 2, 3, 3, 3, 0]


def test_credit_of_turns_stands_under_their_labels() -> None:
    columns = masked_by(Algorithm, (2.0, 3.0)).row.columns
    assert columns["advantages"].tolist() == [0, 2, 2, 2, 3, 3, 3, 0]


def test_an_algorithm_may_leave_out_what_is_trained_and_bring_nothing_back() -> None:
    class All(Algorithm):
        def mask(self, row: Row) -> Any:
            return np.ones(len(row.tokens_L), dtype=np.bool_)

    class FirstTurn(Algorithm):
        def mask(self, row: Row) -> Any:
            return row.columns["turns"] == 0

    bound, every, first = (masked_by(cls) for cls in (Algorithm, All, FirstTurn))
    trained = [False, False, True, False, True, True, False, False]
    assert bound.row.columns["mask"].tolist() == every.row.columns["mask"].tolist() == trained
    assert first.row.columns["mask"].tolist() == [False, False, True] + [False] * 5
    assert (bound.counts, every.counts.num_masked) == (every.counts, 1)
    assert (first.counts.num_trained, first.counts.num_masked) == (1, 3)


def test_packed_labels_never_cross_into_the_next_sequence() -> None:
    rows = [example_sequence().row, example_sequence().row]
    (together,) = pack(rows, 16)
    batch = micro_batch(together)
    assert batch.labels_T.tolist() == [11, 12, 13, 14, 15, 16, 17, 0] * 2
    assert batch.positions_T.tolist() == list(range(8)) * 2
    assert batch.cu_seqlens.tolist() == [0, 8, 16]
    assert batch.max_seqlen == 8
    assert not batch.columns["mask"][[7, 15]].any()
    assert len(pack(rows, 15)) == 2
    assert pack([], 16) == []


def test_per_episode_weights_give_the_mean_over_episodes_of_the_mean_over_tokens() -> None:
    header = header_of([[[3], [5, 4]], [[2], []]])
    (plan,) = plan_iteration(header, load_algorithm(RunConfig(max_tokens_per_gpu=64)), 1)
    by_episode: dict[str, float] = {}
    for planned in plan.shards[0]:
        key = str(planned.row.episode)
        share = planned.weight * planned.row.meta.num_sampled
        by_episode[key] = by_episode.get(key, 0.0) + share
    assert by_episode == pytest.approx({"g0/0#0": 0.25, "g0/1#0": 0.25, "g1/0#0": 0.25})
    assert plan.num_targets == 14


def test_per_token_weights_give_the_mean_over_all_sampled_tokens() -> None:
    header = header_of([[[3], [5, 4]], [[2], [6]]])
    cfg = RunConfig(max_tokens_per_gpu=64, calculate_per_token_loss=True)
    (plan,) = plan_iteration(header, load_algorithm(cfg), 1)
    assert {planned.weight for planned in plan.shards[0]} == {1 / 20}


def test_denominators_do_not_notice_masking() -> None:
    whole, masked = example_sequence(), example_sequence(max_staleness=0)
    assert whole.row.columns["weights"].tolist() == masked.row.columns["weights"].tolist()


def test_a_group_split_over_ranks_keeps_the_advantages_of_the_whole_group() -> None:
    header = header_of([[[3], [5], [7], [2]]])
    (plan,) = plan_iteration(header, load_algorithm(RunConfig(max_tokens_per_gpu=64)), 2)
    assert all(len(shard) == 2 for shard in plan.shards)
    expected = load_algorithm(RunConfig()).values([0.0, 1.0, 2.0, 3.0])
    for shard in plan.shards:
        for planned in shard:
            assert planned.credit.value == expected[planned.row.episode.index]


def test_mini_batches_keep_groups_whole_and_the_short_one_has_its_own_denominators() -> None:
    header = header_of([[[2], [2]]] * 5)
    cfg = RunConfig(max_tokens_per_gpu=64, num_steps_per_rollout=2)
    plans = plan_iteration(header, load_algorithm(cfg), 1)
    groups = [{planned.row.episode.group for planned in plan.shards[0]} for plan in plans]
    assert groups == [{"g0", "g1", "g2"}, {"g3", "g4"}]
    assert {p.weight for p in plans[1].shards[0]} == {1 / (4 * 2)}


def test_fewer_groups_than_steps_make_fewer_steps() -> None:
    cfg = RunConfig(max_tokens_per_gpu=64, num_steps_per_rollout=4)
    assert len(plan_iteration(header_of([[[2]], [[2]]]), load_algorithm(cfg), 1)) == 2
    assert plan_iteration(header_of([[[0]]]), load_algorithm(cfg), 1) == ()


def test_a_trajectory_of_a_foreign_episode_is_refused() -> None:
    group = header_of([[[2]]]).groups[0]
    stranger = row_of(response(2), "other", 0)
    broken = GroupRows("g0", 0, "t", group.episodes, [0.0], [{}], [stranger])
    with pytest.raises(DataError, match="not one of its episodes"):
        plan_iteration(LeaseHeader(1, [broken]), load_algorithm(RunConfig()), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": [C, C, S, S, U, S, S, S]}, "5 sampled tokens, its row says 4"),
        ({"kinds": [S, C, C, S, U, S, S, C]}, "its first token is sampled"),
        ({"logprobs": [0, 0, np.nan, 0, 0, 0, 0, 0]}, "not finite"),
        ({"versions": [-1, -1, 0, 1, -1, 1, 1, -1]}, "its row says"),
        ({"tokens": [1, 2]}, "column tokens has 8 bytes, 8 tokens have 32"),
    ],
    ids=["count", "first", "nan", "versions", "length"],
)
def test_columns_that_contradict_their_row_are_refused(
    change: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        decode_trajectory(row_of(EXAMPLE), buffers_of(EXAMPLE | change))


def test_episodes_without_advantage_are_counted_but_not_computed() -> None:
    """Group g0 has one episode (advantage 0), g1 two that differ: only those two are computed."""
    header = header_of([[[4]], [[3], [5]]])
    cfg = RunConfig(max_tokens_per_gpu=64, calculate_per_token_loss=True)
    (plan,) = plan_iteration(header, load_algorithm(cfg), 1)
    assert {planned.row.episode.group for planned in plan.shards[0]} == {"g1"}
    assert plan.num_targets == 12
    assert all(planned.weight == 1 / 12 for planned in plan.shards[0])


@pytest.mark.parametrize(
    "terms",
    [{"entropy_coef": 0.01}, {"use_kl_loss": True, "kl_loss_coef": 0.1}, {"use_kl_loss": True}],
)
def test_a_loss_with_another_term_computes_every_episode(terms: dict[str, Any]) -> None:
    header = header_of([[[4]], [[3], [5]]])
    (plan,) = plan_iteration(header, load_algorithm(RunConfig(max_tokens_per_gpu=64, **terms)), 1)
    assert {planned.row.episode.group for planned in plan.shards[0]} == {"g0", "g1"}
