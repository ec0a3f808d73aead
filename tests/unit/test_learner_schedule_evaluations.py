"""Which weights a learner writes for evaluations that are apart, and when."""

from collections.abc import Sequence

import msgspec
import pytest

from agentrl.eval_weights import EvalWeightsDue
from agentrl.learner.question import StopRequested
from agentrl.learner.schedule import Step
from agentrl.types import VersionRow
from tests.unit.test_learner_schedule import EVERY, Ckpt, brief, played


def evaluated(steps: Sequence[Step]) -> str:
    return " ".join(word for word in brief(steps).split() if word[:8] in ("evaluate", "publishe"))


@pytest.mark.parametrize("marks_last", [False, True])
def test_weights_for_evaluations_are_written_after_they_are_published(marks_last: bool) -> None:
    settings = msgspec.structs.replace(
        EVERY, update_weights_interval=2, evaluates=EvalWeightsDue(3, first=True)
    )
    assert evaluated(played(settings, leases=7, marks_last=marks_last)) == (
        "published0 evaluate0@0 published1 published2 evaluate2@4 published3 evaluate3@6"
        " published4 evaluate4@7"
    )


def test_the_last_weights_are_written_once_and_not_after_a_request_to_stop() -> None:
    settings = msgspec.structs.replace(EVERY, evaluates=EvalWeightsDue(2, first=False))
    assert evaluated(played(settings, leases=2)) == "published0 published1 published2 evaluate2@2"
    assert evaluated(played(settings, leases=3)).endswith("published3 evaluate3@3")
    stopped = played(settings, [None, StopRequested()], leases=3)
    assert evaluated(stopped) == "published0 published1"


def test_a_learner_that_begins_again_writes_what_is_due_from_there_on() -> None:
    settings = msgspec.structs.replace(EVERY, evaluates=EvalWeightsDue(2, first=True))
    versions = [VersionRow(0, None, 0), VersionRow(1, 0, 1)]
    steps = played(settings, leases=2, versions=versions, saved=Ckpt(1, 1))
    assert evaluated(steps).startswith("published2 published3 evaluate3@")
