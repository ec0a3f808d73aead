"""`TrackedRun`: a run's metrics at a service; what is the same for every service.

    BEGINNING -> TOLD -> ENDED

A thread of its own speaks to the service: only the start and the end wait for it, and each of them
has a deadline. A service that does not begin the run ends the start, with what to do. One that
fails later costs its own curves and not the run, and is told of once: `metrics.jsonl` has all of
them. The package raises what its connection raises as well as its own errors, and may want to end
the program, so whatever it raises counts as the service's failure. Secrets stand in no message.

A continued run goes on in the same run at the service, whose id `NAME.json` keeps.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

import msgspec

from agentrl.disk import read_json, replace_file
from agentrl.errors import EnvironmentSetupError
from agentrl.telemetry.logging import hider
from agentrl.telemetry.trackers.base import Beginning, Known, Session, Tracker, TrackerRow
from agentrl.visible import message_of, shown_urls

__all__ = ["TrackedRun"]

logger = logging.getLogger(__name__)

#: A service gives up by itself first, and says so; it is waited for this much longer.
_GRACE = 1.1
#: Rows that may wait for a slow service; there is one for each iteration and evaluation.
_MAX_ROWS = 4096
_THREAD = "tracker-"


class TrackedRun:
    """A run at a service. `config`: what it shows of the run's settings; `secrets`: hidden beside
    those of the environment. Raises EnvironmentSetupError where the run does not begin there."""

    def __init__(
        self,
        tracker: Tracker,
        run_dir: Path,
        run_id: str,
        config: Mapping[str, Any],
        *,
        secrets: Sequence[str] = (),
        begin_s: float = 180.0,
        finish_s: float = 300.0,
        max_rows: int = _MAX_ROWS,
    ) -> None:
        self._tracker = tracker
        self._hide = hider(secrets)
        self._finish_s = finish_s
        self._rows: Queue[TrackerRow | None] = Queue(max_rows)
        self._exit_code = 1
        self._has_failed = False
        self._num_rows = self._num_lost = 0
        file = run_dir / f"{tracker.name}.json"
        beginning = Beginning(
            run_dir=run_dir,
            run_id=run_id,
            config=config,
            known=read_json(file, Known),
            finish_s=finish_s,
        )
        begun: Future[Session] = Future()
        self._thread = Thread(
            target=self._speak,
            args=(beginning, begun),
            name=f"{_THREAD}{tracker.name}",
            daemon=True,
        )
        logging.getLogger("urllib3.connectionpool").addFilter(_is_elsewhere)
        self._thread.start()
        replace_file(file, msgspec.json.encode(self._begun(begun, begin_s)) + b"\n")

    def write(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ) -> None:
        """Hand over the numbers of an iteration, or of an evaluation after it."""
        row = TrackerRow(
            scalars=dict(scalars),
            histograms=dict(histograms),
            axes=self._tracker.axes(step, scalars.keys()),
            time_s=time.time(),
        )
        self._num_rows += 1
        try:
            self._rows.put_nowait(row)
        except Full:
            self._num_lost += 1
            self._tell(f"it is {self._rows.maxsize} reports behind")

    def close(self, exit_code: int = 0) -> None:
        """End the run at the service, once what was handed over is there, or the time is over."""
        self._exit_code = exit_code
        until = time.monotonic() + self._finish_s * _GRACE
        with suppress(Full):  # the thread is stuck then, and is left to itself
            self._rows.put(None, timeout=self._finish_s)
        self._thread.join(max(0.0, until - time.monotonic()))
        tracker = self._tracker
        if self._thread.is_alive():
            logger.warning(
                "%s has not taken all metrics within %g s; metrics.jsonl has them%s",
                tracker.title,
                self._finish_s,
                tracker.leftover,
            )
        elif self._num_lost:
            logger.warning(
                "%s lacks %d of %d reports; metrics.jsonl has them",
                tracker.title,
                self._num_lost,
                self._num_rows,
            )

    def _begun(self, begun: Future[Session], begin_s: float) -> Known:
        flag, title = f"--use-{self._tracker.name}", self._tracker.title
        if not wait([begun], begin_s).done:
            self._rows.put(None)  # if it begins the run after all, it ends it
            raise EnvironmentSetupError(
                f"{flag}: {title} did not answer within {begin_s:g} s; {self._tracker.remedy}"
            )
        error = begun.exception()
        if isinstance(error, ImportError):
            raise EnvironmentSetupError(
                f"{flag} needs its package: pip install 'agentrl[{self._tracker.name}]' ({error})"
            )
        if error is not None:
            raise EnvironmentSetupError(
                f"{flag}: {title} did not begin the run: {self._hidden(error)}; "
                f"{self._tracker.remedy}"
            )
        return begun.result().known

    def _speak(self, beginning: Beginning, begun: Future[Session]) -> None:
        """The thread."""
        try:
            session = self._tracker.begin(beginning)
        except BaseException as error:  # the start waits for an answer, whatever it is
            begun.set_exception(error)
            return
        begun.set_result(session)
        while (row := self._rows.get()) is not None:
            try:
                session.log(row)
            except BaseException as error:  # a thread that ends would take no further row, unseen
                self._num_lost += 1
                self._tell(self._hidden(error))
        try:
            session.finish(self._exit_code)
        except BaseException as error:
            self._tell(self._hidden(error))

    def _tell(self, why: str) -> None:
        """Tell of the first failure."""
        if not self._has_failed:
            logger.warning(
                "%s took no metrics: %s; metrics.jsonl has them", self._tracker.title, why
            )
        self._has_failed = True

    def _hidden(self, error: BaseException) -> str:
        return shown_urls(self._hide(message_of(error)))


def _is_elsewhere(record: logging.LogRecord) -> bool:
    """What each retry says is told once here."""
    return not str(record.threadName).startswith(_THREAD)
