"""`--rollout-all-samples-process-path`: a function of the user's sees all scored groups of a lease.

    the buffer tells of a group -> it waits -> its lease is made -> the function is called

It is called in a process of its own beside the driver, once for each lease, one call after the
other, and once at the end of the run for what was scored after the last lease. Nothing waits for it
but that end, for two minutes at most. What it raises, holds up or ends costs its own figures. A
group was shown when a call with it has come to its end; others are counted, and told at the end.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from agentrl.cluster.scored_groups import ScoredGroups
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.envs.slime_logs.functions import ALL_SAMPLES, KINDS
from agentrl.envs.slime_logs.process import LIMIT_S, AboutGroups, LogProcess
from agentrl.telemetry.recorder import Recorder
from agentrl.wire.messages import Logged

__all__ = ["AllSamples"]

_LOG = logging.getLogger(__name__)
#: Seconds that the end of a run waits: for a call that hangs, and for those after it.
END_S = 2 * LIMIT_S


class AllSamples:
    """Asks the function; `log` is the file of what it prints. Of a run that names none nobody
    tells it anything (`is_there`)."""

    def __init__(
        self,
        config: RunConfig,
        log: Path,
        recorder: Recorder,
        groups: ScoredGroups | None = None,
    ) -> None:
        place = config.rollout_all_samples_process_path
        self.is_there = is_read(config, ALL_SAMPLES) and place is not None
        self._who = f"{KINDS[ALL_SAMPLES].flag} {place}"
        self._process = LogProcess(config, log)
        self._recorder = recorder
        self._groups = groups or ScoredGroups()
        self._num_lost = 0
        self._lease = 0
        self._is_over = False
        self._more, self._done = anyio.Event(), anyio.Event()

    def scored(self, group: Mapping[str, Any]) -> None:
        """The buffer tells of a group (`ScoredGroup`)."""
        self._groups.add(msgspec.msgpack.encode(group))

    def leased(self, number: int) -> None:
        """Lease `number` was made: the function is called with what was scored until now."""
        self._lease = number
        self._groups.leased(number)
        self._more.set()

    async def run(self) -> None:
        """Call the function whenever there is something to show; returns after `end`."""
        while True:
            self._more = anyio.Event()
            if (batch := self._groups.take()) is not None:
                number, groups = batch
                self._num_lost += len(groups)  # also where the end of the run does not wait for it
                if await self._is_shown(number, groups):
                    self._num_lost -= len(groups)
            elif self._is_over:
                break
            else:
                await self._more.wait()
        self._done.set()

    async def end(self, limit_s: float = END_S) -> None:
        """No more groups come: show what waits, in `limit_s` seconds at most, and tell how many
        groups were not shown. Waits for `run`."""
        self._is_over = True
        self.leased(self._lease)
        with anyio.move_on_after(limit_s):
            await self._done.wait()
        lost = self._num_lost + self._groups.num_dropped + self._groups.num_groups
        if lost:
            self._recorder.note(
                f"note: {lost} scored groups were not shown to {self._who}: no call with them came "
                "to its end, or more of them waited than there is room for"
            )

    def close(self) -> None:
        """End its process."""
        self._process.close()

    async def _is_shown(self, iteration: int, groups: list[bytes]) -> bool:
        try:
            self._process.ask(AboutGroups(iteration, [msgspec.Raw(group) for group in groups]))
        except OSError as error:
            told = f"{self._who}: no process can begin for it: {error}"
            found = Logged(told=told, call="lost")
        else:
            found = await anyio.to_thread.run_sync(self._process.answer, abandon_on_cancel=True)
        if found.told:
            _LOG.warning("%s", found.told)
        is_over = found.call == "over"
        self._recorder.logged(iteration, found.figures, found.told, is_over=is_over)
        return found.call == "made"
