"""`Failures`: how a failed episode or group is reported and logged, the same for all."""

import logging
from collections.abc import Sequence

from agentrl.actors.boundary import describe, sendable_text
from agentrl.actors.report import PlayedEpisode, failed_episode
from agentrl.errors import GivenUpError, InfrastructureError, PromptTooLongError
from agentrl.types import EpisodeAssignment, Outcome, StopReason
from agentrl.visible import message_of
from agentrl.wire.messages import GroupScore

__all__ = ["Failures"]

_LOG = logging.getLogger(__name__)

#: Different errors that are logged with their traceback.
_MAX_SEEN = 100


def _outcome_of(failure: BaseException) -> Outcome:
    """Whose fault it is: the infrastructure's, the data's, or else the Env's."""
    if isinstance(failure, InfrastructureError):
        return Outcome.ENGINE_ERROR
    is_left_out = isinstance(failure, (PromptTooLongError, GivenUpError))
    return Outcome.FILTERED if is_left_out else Outcome.ENV_ERROR


class Failures:
    """The failures of episodes and groups; of what they were it keeps only which it has seen."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def report(
        self, assignment: EpisodeAssignment, failure: BaseException, wall_s: float
    ) -> PlayedEpisode:
        """The report of an episode that `failure` has ended. Logged, with its traceback the first
        time that this error is seen."""
        outcome = _outcome_of(failure)
        whose = f"episode {assignment.id} of task {assignment.task.id}"
        if outcome is Outcome.FILTERED:  # nobody's code is to be looked at
            error, traced = sendable_text(message_of(failure)), None
        else:
            error, traced = describe(failure), failure
        self._log(whose, outcome, error, traced)
        is_given_up = isinstance(failure, GivenUpError)
        reason = StopReason.GIVEN_UP if is_given_up else StopReason.ERROR
        return failed_episode(assignment, outcome, error, wall_s, reason)

    def score(
        self,
        group: str,
        error: str,
        failure: BaseException | None,
        rewards: Sequence[float] = (),
    ) -> GroupScore:
        """The score of a group whose rewards or filter have failed. Logged as an episode's."""
        error = sendable_text(error)
        self._log(f"group {group}", Outcome.ENV_ERROR, error, failure)
        return GroupScore(group, list(rewards), keep=False, error=error)

    def _log(self, whose: str, outcome: Outcome, error: str, failure: BaseException | None) -> None:
        shown = None
        if failure is not None and error not in self._seen and len(self._seen) < _MAX_SEEN:
            self._seen.add(error)
            shown = failure
        _LOG.warning("%s: %s: %s", whose, outcome, error, exc_info=shown)
