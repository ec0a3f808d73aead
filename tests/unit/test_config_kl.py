"""The flags of the KL to the reference: what they mean in slime's scripts, and what is said."""

import pytest

from agentrl.config.resolve import parse
from agentrl.errors import ConfigError

USE, COEF, K1 = ["--use-kl-loss"], ["--kl-loss-coef", "0.1"], ["--kl-loss-type", "k1"]


def notes(*argv: str) -> str:
    return "\n".join(parse(["--device", "cpu", *argv], "train_async").notes)


@pytest.mark.parametrize("coefficient", ["0.00", "0.1"])
def test_a_coefficient_without_the_flag_that_reads_it_is_noted_as_slime_passes_over_it(
    coefficient: str,
) -> None:
    said = notes("--kl-loss-coef", coefficient, "--kl-loss-type", "low_var_kl")
    assert "--kl-loss-coef, --kl-loss-type: no effect without --use-kl-loss" in said
    assert "kl-loss" not in notes(*USE, "--kl-loss-coef", "0", "--kl-loss-type", "k3")


def test_what_no_kind_of_such_a_run_reads_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match="--eval-mode: this is about"):
        parse(["--eval-mode", "pinned", *COEF], "train_async")
    with pytest.raises(ConfigError, match="--kl-loss-coef: an evaluation"):
        parse(["--eval-only", *COEF], "train_async")


def test_the_estimator_is_noted_where_nobody_named_one() -> None:
    assert "--kl-loss-type low_var_kl, as none is given (slime's default is k1" in notes(*USE)
    assert "as none is given" not in notes(*USE, "--kl-loss-type", "low_var_kl")
    assert "as none is given" not in notes()


def test_a_penalty_whose_gradient_holds_no_reference_is_warned_of() -> None:
    assert "warning: --kl-loss-type k1 with --kl-loss-coef 0.1" in notes(*USE, *COEF, *K1)
    for harmless in ((*USE, *K1), (*USE, *COEF), (*COEF, *K1)):
        assert "warning" not in notes(*harmless)
