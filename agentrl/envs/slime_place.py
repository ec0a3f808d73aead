"""`PlacedSource`: a class of `--data-source-path` that is asked where the run stands.

    one that keeps its place   save(0) -> asked -> save(1) -> asked ...   load(n): as at save(n)
    any other                  asked, asked ...       made anew, it gives the same in the same order

A class keeps its place if `save` and `load` are its own and do something. When a run goes on it is
loaded with the number of its last journalled ask; one that then begins again is found out. Any
other is asked for all that it gave, which must be the same. So no task is lost and none comes
twice, or the run ends and says why. One exception: what asking takes from elsewhere (a queue) is
lost if the program is killed between the asking and the journal. A call that does not come back is
told, and given up at `--hook-timeout-s`.
"""

import dis
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import msgspec

from agentrl import disk
from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.slime_stand_in import data_source
from agentrl.envs.source_journal import JournalLine, SourceJournal
from agentrl.errors import ConfigError, DataError, EnvironmentSetupError
from agentrl.user_traceback import is_users, shown_path, words_of

__all__ = ["PlacedSource", "folder_of", "keeps_place"]

#: Seconds after which a call that has not come back is told: it may hold up the run.
SLOW_S = 30.0
_LOG = logging.getLogger(__name__)
#: What a function is made of that does nothing.
_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


def keeps_place(kind: Any) -> bool:
    """Whether a class has `save` and `load` of its own, and they do something."""
    return all(_does_something(getattr(kind, name, None)) for name in ("save", "load"))


def _does_something(function: Any) -> bool:
    if not callable(function) or getattr(function, "__module__", "") == data_source.__name__:
        return False
    if not isinstance(function, FunctionType):
        return True
    return any(step.opname not in _NOTHING for step in dis.get_instructions(function))


class PlacedSource:
    """One of the user's class, where the journal of a run ends; without a journal at its beginning.
    `num_groups`: how many groups the run has been given. `late` is called with the error of a
    call that takes longer than it may, from another thread. Nothing here is for the event loop.

    Raises ConfigError for a class that cannot be made, DataError for what one does that leaves open
    where it stands, EnvironmentSetupError where nothing can be written.
    """

    def __init__(
        self,
        whose: str,
        kind: Callable[[Any], Any],
        config: RunConfig,
        journal: SourceJournal | None,
        rows_of: Callable[[list[Any], int], list[dict[str, Any]]],
        late: Callable[[DataError], None],
    ) -> None:
        self._whose, self._kind, self._rows_of, self._late = whose, kind, rows_of, late
        self._limit_s = config.hook_timeout_s
        self._journal, self._args = journal, _args(config, journal)
        self._number = config.rollout_batch_size
        self._keeps = journal is not None and keeps_place(kind)
        self._asked = self.num_groups = 0
        self._source = self._made()
        (self._load if self._keeps else self._repeat)()

    def next(self) -> list[dict[str, Any]]:
        """The rows of the next groups, which are durable by then; none at the end."""
        asked = self._ask(self._source, self._number)
        if asked.rows:
            self._note(asked)
        return asked.rows

    def _made(self) -> Any:
        name = getattr(self._kind, "__name__", "the class")
        try:
            with self._timed(f"{self._whose}: {name}(args)"):
                return self._kind(self._args)
        except Exception as error:
            raise ConfigError(f"{self._whose} cannot be made: {words_of(error)}") from error

    def _load(self) -> None:
        """To where the run stands, by what it saved."""
        before = [*(self._journal or ())]
        for asked in before:
            self._count(asked)
        if not before:
            self._save()
            return
        self._call(self._source, "load", self._asked)
        asked = self._ask(self._source, self._number)
        if self._begins_again(before, asked):
            raise DataError(
                f"{self._whose}: after load({self._asked}) it gives what it gave at the very "
                f"beginning, and not what comes after save({self._asked}): tasks would be played "
                "twice. Let `save` write where it stands into args.save, and `load` read it from "
                "args.load; or leave both out, and let the order follow from args.rollout_seed"
            )
        if asked.rows:
            self._note(asked)

    def _begins_again(self, before: list[JournalLine], asked: JournalLine) -> bool:
        """Whether what it gives first now is its beginning, as of one whose `load` does not help.
        Rows that come again in each epoch may begin again too: then it must know another place."""
        first = before[0].rows
        shared = min(len(first), len(asked.rows))
        if not shared or _bytes(asked.rows[:shared]) != _bytes(first[:shared]):
            return False
        others = [i for i, each in enumerate(before) if _bytes(each.rows) != _bytes(first)]
        if not others:
            return len(before) == 1
        there = others[-1]
        other = self._made()
        self._call(other, "load", there)
        found = self._ask(other, before[there].num_samples)
        return _bytes(found.rows) != _bytes(before[there].rows)

    def _repeat(self) -> None:
        """To where the run stands, by asking for all that it gave."""
        for asked in self._journal or ():
            again = self._ask(self._source, asked.num_samples)
            if _bytes(again.rows) != _bytes(asked.rows):
                raise DataError(
                    f"{self._whose}: the run goes on, and get_samples({asked.num_samples}) gives "
                    f"other groups than before, from group {self.num_groups} on: what comes next "
                    "cannot be told. Let the order follow from args.rollout_seed alone, or define "
                    "`save(self, rollout_id)` and `load(self, rollout_id)`, which keep its place"
                )
            self._count(asked)

    def _note(self, asked: JournalLine) -> None:
        """Where it stands now, and then what it gave: so each line of the journal has its state."""
        self._count(asked)
        if self._keeps:
            self._save()
        if self._journal is not None:
            try:
                self._journal.write(asked)
            except OSError as error:
                raise self._unwritten(error) from error

    def _count(self, asked: JournalLine) -> None:
        self._asked += 1
        self.num_groups += len(asked.rows)

    def _save(self) -> None:
        assert self._journal is not None
        try:
            disk.make_folder(self._journal.folder)
            self._call(self._source, "save", self._asked)
            disk.sync_tree(self._journal.folder)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> EnvironmentSetupError:
        return EnvironmentSetupError(
            f"{self._whose}: what it gives cannot be written down: {error}; make room, and go on "
            "with --resume"
        )

    def _ask(self, source: Any, number: int) -> JournalLine:
        groups = self._call(source, "get_samples", number)
        if not isinstance(groups, list):
            raise DataError(
                f"{self._whose}: get_samples({number}) returned {groups!r:.80} after "
                f"{self.num_groups} groups; return a list of groups, each a list of samples; at "
                "the end an empty one"
            )
        return JournalLine(number, self._rows_of(groups, self.num_groups))

    def _call(self, source: Any, method: str, number: int) -> Any:
        call, after = f"{self._whose}: {method}({number})", f"after {self.num_groups} groups"
        try:
            with self._timed(call):
                return getattr(source, method)(number)
        except Exception as error:
            raise DataError(f"{call} raised {words_of(error)} {after}") from error

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        """Say that a call has not come back, and give it up at the limit."""
        after, caller = f"after {self.num_groups} groups", threading.get_ident()
        slow = f"{call} has taken more than {SLOW_S:g} s {after}"

        def late() -> None:
            words = (
                f"{call} has not come back within {self._limit_s:g} s (--hook-timeout-s) {after}"
            )
            advice = "mend it, or raise the limit, and go on with --resume"
            self._late(DataError(f"{words}{_standing(caller)}: {advice}"))

        limit_s = min(self._limit_s, threading.TIMEOUT_MAX)
        timers = [threading.Timer(SLOW_S, _LOG.warning, [slow]), threading.Timer(limit_s, late)]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


def _standing(thread: int) -> str:
    """Where the user's code stands in a thread, as ` (mine.py:12)`."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame) if frame is not None else []
    theirs = [
        f"{shown_path(each.filename)}:{each.lineno}" for each in stack if is_users(each.filename)
    ]
    return f" ({theirs[-1]})" if theirs else ""


def _args(config: RunConfig, journal: SourceJournal | None) -> Args:
    """Those of the run; what a class saves goes into its folder and comes from there."""
    args: Any = Args(config)
    if journal is not None:
        args.save = args.load = str(journal.folder)
        args.rollout_global_dataset = True
    return cast(Args, args)


def _bytes(rows: list[dict[str, Any]]) -> bytes:
    """The same for the same rows, given now or read from a journal."""
    read = msgspec.json.decode(msgspec.json.encode(rows))
    return msgspec.json.encode(read, order="deterministic")


def folder_of(run: Path, part: str) -> Path:
    """Where the source of a run, or of a part of its mixture, has its journal and its own files."""
    return run / "source" / f"part-{part}" if part else run / "source"
