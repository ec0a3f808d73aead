"""What a player keeps of the failures that it reports."""

import logging

import pytest

from agentrl.actors.failures import Failures
from tests.unit.rollout_ground import ASSIGNMENT


def test_of_many_different_failures_few_are_kept_and_have_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = Failures()
    with caplog.at_level(logging.WARNING):
        for number in (*range(150), 0):
            report = failures.report(ASSIGNMENT, ValueError(f"number {number}"), 1.0).report
            assert f"number {number}" in (report.error or "")
    assert sum(record.exc_info is not None for record in caplog.records) == 100
    assert len(failures._seen) == 100
