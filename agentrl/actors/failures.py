"""`Failures`: how a failed episode is reported and logged, the same for every player."""

import logging

from agentrl.actors.boundary import describe
from agentrl.actors.report import PlayedEpisode, failed_episode
from agentrl.errors import InfrastructureError, PromptTooLongError
from agentrl.types import EpisodeAssignment, Outcome

__all__ = ["Failures", "outcome_of_failure"]

_LOG = logging.getLogger(__name__)

#: Different errors that are logged with their traceback.
_MAX_SEEN = 100


def outcome_of_failure(failure: BaseException) -> Outcome:
    """Whose fault it is: the infrastructure's, the data's, or else the Env's."""
    if isinstance(failure, InfrastructureError):
        return Outcome.ENGINE_ERROR
    return Outcome.FILTERED if isinstance(failure, PromptTooLongError) else Outcome.ENV_ERROR


class Failures:
    """The failures of one player; of what they were it keeps only which it has seen."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def report(
        self, assignment: EpisodeAssignment, failure: BaseException, wall_s: float
    ) -> PlayedEpisode:
        """The report of an episode that `failure` has ended. Logged, with its traceback the first
        time that this error is seen."""
        outcome = outcome_of_failure(failure)
        error = describe(failure)
        shown = None
        if (
            outcome is not Outcome.FILTERED
            and error not in self._seen
            and len(self._seen) < _MAX_SEEN
        ):
            self._seen.add(error)
            shown = failure
        whose = f"episode {assignment.id} of task {assignment.task.id}"
        _LOG.warning("%s: %s: %s", whose, outcome, error, exc_info=shown)
        return failed_episode(assignment, outcome, error, wall_s)
