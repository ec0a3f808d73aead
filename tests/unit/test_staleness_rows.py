"""What the page of the study of staleness makes of its runs: rows, intervals, sentences."""

import json
import math
import statistics
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks import RESULTS, Row, staleness
from benchmarks.curves import Curve, Interval, interval
from benchmarks.staleness import LAST, POINTS
from benchmarks.staleness_numbers import BASE, MASKED, NAIVE, gap, rows_of, trained_until
from scripts.staleness import staleness_page as page
from tests.unit.staleness_curves import curve


def test_student_has_the_quantiles_of_scipy() -> None:
    t: Any = import_module("scipy.stats").t
    for n in range(2, 11):
        values = [float(i) for i in range(n)]
        half = t.ppf(0.975, n - 1) * statistics.stdev(values) / n**0.5
        found = interval(values)
        assert found.high - found.mean == pytest.approx(half, rel=1e-3)
        assert found.mean - found.low == pytest.approx(half, rel=1e-3)
    with pytest.raises(ValueError, match="11 seeds"):
        interval([0.0] * 11)


def test_one_seed_has_no_bounds() -> None:
    found = interval([0.5])
    assert found == Interval(0.5, -math.inf, math.inf, 1)


def test_a_gap_is_paired_by_seed() -> None:
    """Seeds differ by 0.5, and the two arms by 0.1 in each: the interval has no width."""
    found = gap({1: 0.2, 2: 0.7, 3: 0.9}, {1: 0.1, 2: 0.6})
    assert found.mean == pytest.approx(0.1)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)
    assert found.n == 2
    assert gap({1: 0.2, 2: 0.4}, {1: 0.1, 2: 0.1}).mean == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no seed is in both"):
        gap({1: 0.0}, {2: 0.0})


def test_a_curve_has_a_mean_a_lowest_settled_point_and_an_end() -> None:
    found = curve(NAIVE, 1, 0.8, lowest=0.0)
    found.scores[4] = -9.0  # before the runs are settled
    num = len(POINTS.scored)
    assert POINTS.mean(found) == pytest.approx((0.8 * (num - 2) - 9.0) / num)
    assert (POINTS.lowest(found), POINTS.end(found)) == (0.0, 0.8)
    assert 0 not in POINTS.scored


def bitten() -> list[Curve]:
    return [
        *(curve(BASE, seed, 0.7 + 0.01 * seed) for seed in (1, 2)),
        *(curve(NAIVE, seed, 0.3 + 0.02 * seed, lowest=0.0, ess=0.4) for seed in (1, 2)),
        *(curve("truncate", seed, 0.6 + 0.01 * seed) for seed in (1, 2)),
        *(curve("clip-mu", seed, 0.5 + 0.01 * seed) for seed in (1, 2)),
    ]


def rows() -> dict[str, Row]:
    return {row.metric: row for row in rows_of(bitten(), POINTS)}


def test_what_is_asked_comes_first_and_is_read_off_the_uncorrected_arm() -> None:
    found = rows()
    assert list(found)[:3] == ["ess_age8", "ess_age8_low", "ess_age8_high"]
    assert found["ess_age8"] == Row("ess_age8", 0.4, "share", "< 0.7")
    share = (len(POINTS.scored) - 1) / len(POINTS.scored)
    gaps = [0.71 - 0.32 * share, 0.72 - 0.34 * share]
    assert found["naive_gap"].value == pytest.approx(statistics.fmean(gaps), abs=1e-4)
    assert found["naive_gap_lowest"].value == pytest.approx(0.715)
    assert found["naive_gap_low"].against == found["naive_gap_lowest_low"].against == "> 0"


def test_the_best_correction_is_the_nearest_in_the_mean() -> None:
    assert rows()["best_gap"] == Row("best_gap", 0.1, "share", "truncate")


def test_each_arm_and_each_score_has_rows_of_its_own() -> None:
    found = rows()
    assert found["on-policy: mean"].value == pytest.approx(0.715)
    assert found["truncate, lag 8: mean below on-policy"].value == pytest.approx(0.1)
    assert "on-policy: mean below on-policy" not in found
    assert found["naive, lag 8, seed 2: after 12"] == Row(
        "naive, lag 8, seed 2: after 12", 0.0, "share"
    )


def test_one_seed_gives_means_without_bounds() -> None:
    found = {row.metric for row in rows_of(bitten()[:1] + bitten()[2:3], POINTS)}
    assert {"naive_gap", "ess_age8", "naive, lag 8: mean"} <= found
    assert not [name for name in found if name.endswith(("_low", "_high"))]


def test_arms_without_a_common_seed_are_reported_and_not_compared() -> None:
    """As a study has them that is measured in parts."""
    parts = [curve(BASE, 1, 0.7), curve(NAIVE, 2, 0.3), curve("truncate", 3, 0.5)]
    found = {row.metric for row in rows_of(parts, POINTS)}
    assert {"ess_age8", "naive, lag 8: mean", "truncate, lag 8: mean"} <= found
    assert not [name for name in found if "gap" in name or "below" in name]
    some = {row.metric: row for row in rows_of([*parts, curve("clip-mu", 1, 0.6)], POINTS)}
    assert some["best_gap"] == Row("best_gap", 0.1, "share", "clip-mu")
    assert "naive_gap" not in some


def stopped(seed: int) -> Curve:
    """All tokens are too old from iteration 6 on; the score stands still, near that of BASE."""
    shares = [0.0] * 5 + [1.0] * (LAST + 3)
    return msgspec.structs.replace(curve("age-mask", seed, 0.7), metrics={MASKED: shares})


def test_an_arm_that_stops_to_train_is_not_the_best_and_the_page_says_when_it_stopped() -> None:
    curves = [*bitten(), stopped(1), stopped(2)]
    found = {row.metric: row for row in rows_of(curves, POINTS)}
    assert found["best_gap"] == rows()["best_gap"]
    assert found["age-mask, lag 8: trains until"].value == 5
    shown = page.markdown(result(curves))
    assert (
        "tokens older than half the lag leave the loss; trains nothing after iteration 5 |" in shown
    )
    assert "- `age-mask` trains nothing after iteration 5: it is no correction." in shown
    assert "`age-mask` is" not in shown


def test_a_run_that_trains_to_its_end_is_told_from_one_that_stops() -> None:
    assert trained_until(stopped(1)) == 5
    assert trained_until(curve(NAIVE, 1, 0.5)) is None
    some = msgspec.structs.replace(stopped(1), metrics={MASKED: [1.0, 0.5, 1.0, 0.9]})
    assert trained_until(some) is None


def test_iterations_in_which_all_earned_alike_do_not_say_whether_a_run_trains() -> None:
    """Rewards of a run that stopped to train, or that collapsed, may be 0 at its end."""
    masked = msgspec.structs.replace(stopped(1), metrics={MASKED: [0.0, None, 1.0, 1.0, None]})
    assert trained_until(masked) == 1
    collapsed = msgspec.structs.replace(stopped(1), metrics={MASKED: [0.0, 0.0, None, None]})
    assert trained_until(collapsed) is None


def test_the_arm_that_masks_old_tokens_stopped_to_train_in_every_run_that_was_measured() -> None:
    curves = staleness.read_curves(staleness.KEPT)
    stopping = {(c.arm, c.lag): trained_until(c) for c in curves if trained_until(c) is not None}
    assert stopping == {("age-mask", 8): 5}


# ---- the page -----------------------------------------------------------------------------------


def result(curves: list[Curve]) -> dict[str, Any]:
    made = [msgspec.structs.asdict(row) for row in rows_of(curves, POINTS)]
    return {"machine": "a machine", "commits": ["0123456789ab", "ba9876543210"], "rows": made}


def test_the_page_says_what_the_numbers_say() -> None:
    shown = page.markdown(result(bitten()))
    assert shown.startswith("# What old tokens cost, and what each correction gives back\n")
    assert "Staleness harms the uncorrected loss here" in shown
    assert (
        "`truncate` is not enough: 0.10 (0.10 to 0.10) below `on-policy` in the mean, over 2 seeds."
        in shown
    )
    assert "| commits of the runs | 0123456789ab, ba9876543210 |" in shown
    assert "| `on-policy` | fresh weights, no correction | 2 | 0.71" in shown
    assert "None is shown to be within noise of `on-policy`." in shown
    assert (
        "- `python -m benchmarks.staleness --resume --lag 8 --seeds 1 2 --arms on-policy" in shown
    )
    assert shown.index("| `on-policy`") < shown.index("| `naive`") < shown.index("| `truncate`")


def test_the_page_promises_no_correction_that_was_not_run() -> None:
    shown = page.markdown(result([c for c in bitten() if c.arm in (BASE, NAIVE)]))
    assert shown.startswith("# What old tokens cost\n")
    assert "No correction has been run on it yet." in shown


def test_the_page_does_not_claim_a_harm_that_is_not_shown() -> None:
    curves = [curve(BASE, 1, 0.7), curve(BASE, 2, 0.5), curve(NAIVE, 1, 0.5), curve(NAIVE, 2, 0.6)]
    shown = page.markdown(result([*curves, curve("truncate", 1, 0.7), curve("truncate", 2, 0.52)]))
    assert "is not shown to harm" in shown
    assert "`truncate` is not told apart by these seeds, and may cost 0.12" in shown
    near = [*curves, curve("truncate", 1, 0.7), curve("truncate", 2, 0.51)]
    assert "`truncate` is within noise" in page.markdown(result(near))


def test_the_picture_has_every_arm() -> None:
    svg = ElementTree.fromstring(page.picture(result(bitten()), 8))
    texts = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    for arm in (BASE, NAIVE, "truncate", "clip-mu"):
        assert any(arm in shown for shown in texts)


def test_bounds_print_with_their_mean() -> None:
    assert str(page.Bounded(0.5, None, None)) == "0.50"
    assert str(page.Bounded(0.5, 0.25, 0.75)) == "0.50 (0.25 to 0.75)"


# ---- what was measured --------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "staleness.json").read_text())
    return found


def test_the_page_is_what_the_committed_numbers_make() -> None:
    found = measured()
    assert page.PAGE.read_text(encoding="utf-8") == page.markdown(found)
    for lag in {arm.lag for arm in page.arms_of(found)} - {0}:
        assert page.place_of(lag).read_text(encoding="utf-8") == page.picture(found, lag)


def test_in_this_job_staleness_bites() -> None:
    """Shown on the uncorrected loss alone, before any correction was run."""
    values = {row["metric"]: row["value"] for row in measured()["rows"]}
    assert values["ess_age8"] < 0.7
    assert values["naive_gap_low"] > 0
    assert values["naive_gap_lowest_low"] > 0
