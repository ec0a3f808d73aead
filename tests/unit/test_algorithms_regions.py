"""What `--trust-region` says is read or refused with the reason; the rule over a whole iteration
gives all ranks what one rank with all rows has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.regions.m2po import M2po
from agentrl.algorithms.rows import Row
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def given(*texts: str) -> list[tuple[float, ...]]:
    regions = load_algorithm(RunConfig(trust_region=list(texts))).regions
    return [region.given for region in regions]


def test_bounds_stand_behind_the_name_or_are_its_own() -> None:
    assert given("dppo", "token:0.25:4", "veto:1e-5") == [(0.2,), (0.25, 4.0), (1e-5,)]
    assert given() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dpo", "there is no 'dpo'; did you mean 'dppo'"),
        ("dppo:1:2", "2 numbers, and dppo has 1 (largest change of a probability)"),
        ("dppo:2", "between 0 and 1; for example dppo:0.2"),
        ("dppo:far", "what follows a colon is a number"),
        ("token:0.5", "1 numbers, and token has 2 (lowest ratio, highest ratio)"),
        ("token:2:0.5", "0 or more, and below the highest"),
        ("token:1.5:2", "the lowest ratio, 1.5, is not below 1, the ratio where"),
        ("sequence:0.2:0.9", "the highest ratio, 0.9, is not above 1, the ratio where"),
        ("geometric:1:1.001", "would be dropped; for example geometric:0.999:1.001"),
        ("veto:3", "the lowest ratio of a token, 3, is not below 1"),
        ("negative:5", "the lowest ratio, 5, is not below 1"),
        ("negative:0", "a bound is above 0"),
        ("m2po:0", "a bound is above 0"),
        ("m2po:nan", "a finite number"),
    ],
)
def test_what_is_no_trust_region_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        given(text)
    assert said in str(refused.value)
    assert f"--trust-region {text}" in str(refused.value)


def rows(seed: int, lengths: Sequence[int]) -> list[Row]:
    generator = np.random.default_rng(seed)

    def row(length: int) -> Row:
        columns = {
            "prox": generator.normal(-1, 0.3, length).astype(np.float32),
            "mu": generator.normal(-1, 0.3, length).astype(np.float32),
            "advantages": generator.normal(0, 1, length).astype(np.float32),
            "mask": generator.random(length) < 0.8,
        }
        nothing: Any = None
        return Row(nothing, nothing, np.zeros(length, np.int32), columns)

    return [row(length) for length in lengths]


def test_ranks_that_share_the_rows_drop_what_one_rank_drops() -> None:
    every = rows(3, [30, 1, 50, 20])
    rule = M2po(0.02)
    alone = rule.keeps_rows(every, lambda values: list(values))
    # The sums of the other rank, in the order in which they are asked for.
    asked: list[list[list[float]]] = [[], []]
    for _ in range(60):  # each rank is told what the other has said so far, until both are done
        answers = []
        for rank, mine in enumerate((every[:1], every[1:])):
            said: list[list[float]] = []
            others = asked[1 - rank]

            def total(
                values: Sequence[float],
                said: list[list[float]] = said,
                others: list[list[float]] = others,
            ) -> list[float]:
                said.append(list(values))
                other = others[len(said) - 1] if len(said) <= len(others) else [0.0, 0.0]
                return [a + b for a, b in zip(values, other, strict=True)]

            answers.append(rule.keeps_rows(mine, total))
            asked[rank] = said
    shared = [*answers[0], *answers[1]]
    assert [kept.tolist() for kept in shared] == [kept.tolist() for kept in alone]
    assert 0 < sum(int((~kept).sum()) for kept in alone) < 60


def test_where_nothing_moved_nothing_is_dropped() -> None:
    (row,) = rows(1, [10])
    row.columns["prox"] = row.columns["mu"].copy()
    (kept,) = M2po(1e-9).keeps_rows([row], lambda values: list(values))
    assert kept.all()
    assert M2po(0.1).keeps_rows([], lambda values: list(values)) == []
