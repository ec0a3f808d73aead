"""What the baseline of `opob` loses by what it takes for |s|^2: the page has what is counted."""

import pytest

from tests.parity.baseline_table import EXACT, LOGITS, MEAN, OURS, PAGE, TOKENS, page, ratios


def test_the_table_of_the_page_is_the_one_that_is_counted() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m tests.parity.baseline_table"


def test_the_proxy_costs_little_and_other_baselines_more() -> None:
    found = ratios()
    assert found[EXACT] == [1.0] * 4
    for ours, logits, tokens, mean in zip(
        *(found[name] for name in (OURS, LOGITS, TOKENS, MEAN)), strict=True
    ):
        assert 1.0 < ours < 1.2
        assert logits == pytest.approx(ours, rel=0.05)
        assert ours + 0.1 < tokens < mean
