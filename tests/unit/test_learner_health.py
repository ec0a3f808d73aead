"""The check that engine and learner hold the same model."""

import pytest

from agentrl.errors import HealthError
from agentrl.learner.health import MAX_LOGPROB_DIFF, check_logprobs


def test_sound_numerics_pass_and_so_does_an_iteration_without_on_policy_tokens() -> None:
    check_logprobs(1, MAX_LOGPROB_DIFF, 3.0, 100)
    check_logprobs(1, 5.0, 5.0, 0)


def test_a_disagreement_stops_the_run_with_its_numbers_and_likely_causes() -> None:
    with pytest.raises(
        HealthError, match=r"iteration 1: .* 64 on-policy .* 0\.25 .* 1\.5 .*causes"
    ):
        check_logprobs(1, 0.25, 1.5, 64)
