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

from agentrl.config.eval_sets import EvalSet
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.envs.slime_logs.functions import EVALUATION
from agentrl.envs.slime_logs.process import AboutEvaluation, LogProcess
from agentrl.envs.slime_logs.samples import Keys, ScoredEpisode, keys_of
from agentrl.types import Task
from agentrl.wire.messages import Logged

__all__ = ["EvalLog"]

_LOG = logging.getLogger(__name__)


class EvalLog:
    """Asks the function; `log` is the file of what it prints, `sets` are those with flags of their
    own. Does nothing in a run that names none."""

    def __init__(self, config: RunConfig, log: Path, sets: Sequence[EvalSet] = ()) -> None:
        self.is_there = (
            is_read(config, EVALUATION) and config.custom_eval_rollout_log_function_path is not None
        )
        self._process = LogProcess(config, log)
        self._of_sets = {one.name: keys_of(one.config) for one in sets}
        self._of_parts = {part.name: keys_of(part.config) for part in parts_of(config)}

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
        keys = {name: own for name in given if (own := self._keys(name, sets[name])) is not None}
        try:
            self._process.ask(AboutEvaluation(step, given, keys))
        except OSError as error:
            return Logged(told=f"the evaluation after iteration {step} is not logged: {error}")
        found = await anyio.to_thread.run_sync(self._process.answer, abandon_on_cancel=True)
        if found.told:
            _LOG.warning("%s", found.told)
        return found

    def _keys(self, name: str, tasks: Sequence[Task]) -> Keys | None:
        """Those of a set, or of the part whose Env brings it; None: those of the run."""
        return self._of_sets.get(name) or self._of_parts.get(tasks[0].part if tasks else "")

    def close(self) -> None:
        """End its process."""
        self._process.close()
