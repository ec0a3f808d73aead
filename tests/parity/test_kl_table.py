"""Which KL in the loss has the gradient of the KL: the table of the page is what is counted."""

import pytest

from tests.parity.kl_table import FRESH, KINDS, PAGE, STALE, means, page

#: Those whose expected gradient is that of the KL on tokens of the policy's own, and on stale ones.
EXACT_WHEN_FRESH = {"k2", "k1 with `--use-unbiased-kl`"} | {
    f"{kind} with `--use-unbiased-kl`" for kind in ("k3", "low_var_kl")
}
EXACT_WHEN_STALE = EXACT_WHEN_FRESH - {"k2"}


def test_the_table_of_the_page_is_the_one_that_is_counted() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m tests.parity.kl_table"


@pytest.mark.parametrize(
    ("drift", "exact"),
    [(FRESH, EXACT_WHEN_FRESH), (STALE, EXACT_WHEN_STALE)],
    ids=["fresh", "stale"],
)
def test_these_alone_have_the_gradient_of_the_kl(drift: float, exact: set[str]) -> None:
    errors = {name: means(drift, **flags)[0] for name, flags in KINDS.items()}
    assert {name for name, error in errors.items() if error < 1e-4} == exact
    assert min(error for name, error in errors.items() if name not in exact) > 0.1


def test_k1_as_a_loss_holds_no_reference() -> None:
    """Its expected gradient on fresh tokens is 0, and on stale ones that of something else."""
    error, cosine = means(FRESH, **KINDS["k1"])
    assert error == pytest.approx(1.0, abs=1e-5)
    assert cosine is None
    assert abs(means(STALE, **KINDS["k1"])[1] or 0.0) < 0.5
