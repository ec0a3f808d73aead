"""`--custom-eval-rollout-log-function-path`: a function of the user's logs an evaluation.

It is called in a process of its own when all sets have their scores. The driver's loop goes on
meanwhile, and waits a minute at most before it records them.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.envs.slime_logs.functions import EVALUATION
from agentrl.envs.slime_logs.process import AboutEvaluation, LogProcess
from agentrl.envs.slime_logs.samples import ScoredEpisode
from agentrl.types import Task
from agentrl.wire.messages import Logged

__all__ = ["EvalLog"]

_LOG = logging.getLogger(__name__)


class EvalLog:
    """Asks the function; `log` is the file of what it prints. Does nothing in a run that names
    none."""

    def __init__(self, config: RunConfig, log: Path) -> None:
        self.is_there = (
            is_read(config, EVALUATION) and config.custom_eval_rollout_log_function_path is not None
        )
        self._process = LogProcess(config, log)

    async def told(
        self, step: int, sets: Mapping[str, Sequence[Task]], events: Sequence[Mapping[str, Any]]
    ) -> Logged:
        """What it makes of an evaluation after iteration `step`; `events` say how sets ended."""
        given = {
            event["name"]: (
                [task.row for task in sets[event["name"]]],
                msgspec.convert(event.get("episodes", []), list[ScoredEpisode]),
            )
            for event in events
        }
        try:
            self._process.ask(AboutEvaluation(step, given))
        except OSError as error:
            return Logged(told=f"the evaluation after iteration {step} is not logged: {error}")
        found = await anyio.to_thread.run_sync(self._process.answer, abandon_on_cancel=True)
        if found.told:
            _LOG.warning("%s", found.told)
        return found

    def close(self) -> None:
        """End its process."""
        self._process.close()
