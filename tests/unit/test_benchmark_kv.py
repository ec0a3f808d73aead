"""The page of `--kv-across-pushes` says what the benchmark measured."""

import json

from benchmarks import RESULTS, ROOT


def test_the_page_has_the_numbers_of_the_results() -> None:
    rows = json.loads((RESULTS / "kv.json").read_text())["rows"]
    value = {row["metric"]: row["value"] for row in rows}
    page = (ROOT / "docs" / "async.md").read_text()
    for way in ("recompute", "keep", "keep_8"):
        assert f"| {value[f'prefill_per_sampled_{way}']:.1f} tokens |" in page
    gap, shift = value["logprob_gap_keep"], value["policy_shift"]
    assert f"over old caches differed by {gap:.4f} nats on average from" in page
    assert f"log-probabilities by {shift:.4f} nats." in page
