"""A process in which the log functions of a run are called: what they raise, hold up or end costs
their own figures.

    ask -> (the function is called) -> answer                      parent: learner, or driver
    ask -> raises, or ends the process -> answer says so
    ask -> hangs -> answer kills it and says so; the next question begins another, at most thrice

One question at a time. The process stays between questions, with whatever the functions keep. It
ends with its parent.
"""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.disk import narrow
from agentrl.envs.slime_logs.functions import ALL_SAMPLES, EVALUATION, KINDS, ROLLOUT, logged
from agentrl.envs.slime_logs.samples import (
    Keys,
    ScoredEpisode,
    keys_of,
    of_groups,
    samples_of,
    scored,
)
from agentrl.envs.slime_stand_in.sglang_rollout import tokenizer_of
from agentrl.errors import AgentRLError
from agentrl.trial import child_of
from agentrl.wire.messages import Logged, ScoredGroup

__all__ = ["LIMIT_S", "AboutEvaluation", "AboutGroups", "AboutRollouts", "LogProcess"]

#: Seconds that a function has, from when it is waited for.
LIMIT_S = 60.0
#: Times in a row that it may hang; then it is not called again.
MAX_LATE = 3
#: Seconds that a process has to end by itself, and to say where it stands.
_END_S, _SAY_S = 10.0, 1.0
_SIZE = 8


class AboutRollouts(msgspec.Struct, frozen=True, tag="rollouts"):
    """An iteration: the file of its lease, which is removed, and the seconds since the lease
    before."""

    iteration: int
    file: str
    seconds: float


class AboutEvaluation(msgspec.Struct, frozen=True, tag="evaluation"):
    """An evaluation: of each set the rows of its tasks, and its episodes; and the keys of those
    sets that have not the run's."""

    iteration: int
    sets: dict[str, tuple[list[dict[str, Any]], list[ScoredEpisode]]]
    keys: dict[str, Keys] = {}


class AboutGroups(msgspec.Struct, frozen=True, tag="groups"):
    """The groups that were scored until the lease of an iteration was made: each a `ScoredGroup`,
    in msgpack, as it was told."""

    iteration: int
    groups: list[msgspec.Raw]


Question = AboutRollouts | AboutEvaluation | AboutGroups
_FIELDS: dict[type[Question], str] = {
    AboutRollouts: ROLLOUT,
    AboutEvaluation: EVALUATION,
    AboutGroups: ALL_SAMPLES,
}


class LogProcess:
    """The process of one parent. `log`: the file that what it prints is added to; None: where the
    parent's goes. Begin and use it in one thread: the process ends with that."""

    def __init__(self, config: RunConfig, log: Path | None = None) -> None:
        self._config = config
        self._log = log
        self._num_late = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: _Asked | None = None
        self._field = ""

    def ask(self, question: Question) -> None:
        """Have a function called; its `answer` must be taken before the next one. Raises OSError
        where no process can begin."""
        assert self._asked is None
        self._field = _FIELDS[type(question)]
        if self._num_late == MAX_LATE:
            return
        data = [msgspec.msgpack.encode(question)]  # as rows travel elsewhere: bytes, NaN and all
        if self._process is None:
            self._process = self._begun()
            data.insert(0, msgspec.json.encode(without_secrets(self._config)))
        self._asked = _Asked(self._process, data)

    def answer(self, limit_s: float = LIMIT_S) -> Logged:
        """What the function made of it; waits `limit_s` seconds at most."""
        asked, process = self._asked, self._process
        whose = f"{KINDS[self._field].flag} {getattr(self._config, self._field)}: the function"
        if asked is None:
            told = f"{whose} is not called again: it hung {MAX_LATE} times in a row"
            return Logged(told=told, call="over")
        assert process is not None
        asked.thread.join(limit_s)
        if is_late := asked.thread.is_alive():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR1)  # its log then says where it stands
            asked.thread.join(_SAY_S)
        if asked.answer:
            self._asked, self._num_late = None, 0
            try:
                return msgspec.json.decode(asked.answer, type=Logged)
            except msgspec.MsgspecError as error:
                return Logged(told=f"{whose} is answered by what is no answer: {error}")
        self._kill()
        self._num_late = self._num_late + 1 if is_late else 0
        how = f"did not come to an end within {limit_s:g} s" if is_late else "ended its process"
        told = f"{whose} {how}; see {self._log or 'the log of the learner'}"
        return Logged(told=told, call="lost")

    def close(self) -> None:
        """End the process; it may still write what it holds."""
        if self._process is not None and self._asked is None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self._kill()

    def _begun(self) -> "subprocess.Popen[bytes]":
        command, env = child_of(__name__)
        with contextlib.ExitStack() as stack:
            printed = None
            if self._log is not None:
                printed = stack.enter_context(self._log.open("ab"))
                narrow(self._log)
            return subprocess.Popen(  # noqa: S603 - ourselves, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env=env,
                start_new_session=True,
            )

    def _kill(self) -> None:
        process, self._process = self._process, None
        asked, self._asked = self._asked, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if asked is not None:
            asked.thread.join(_SAY_S)
            if asked.thread.is_alive():  # what the function has begun holds the pipes open
                return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class _Asked:
    """A question that `thread` puts to a process, in pieces of `data`, and its `answer`: empty
    until there is one. The thread may outlive the process, as long as something holds its pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]", data: list[bytes]) -> None:
        self.answer = b""
        self.thread = threading.Thread(target=self._speak, args=(process, data), daemon=True)
        self.thread.start()

    def _speak(self, process: "subprocess.Popen[bytes]", data: list[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for each in data:
                _put(process.stdin, each)
            self.answer = _taken(process.stdout)


def _put(file: BinaryIO | Any, data: bytes) -> None:
    file.write(len(data).to_bytes(_SIZE, "little") + data)
    file.flush()


def _taken(file: BinaryIO | Any) -> bytes:
    """The next piece; empty at the end."""
    size = int.from_bytes(file.read(_SIZE), "little")
    data: bytes = file.read(size)
    return data if len(data) == size else b""


# ---- in the process of its own -------------------------------------------------------------------


def main() -> None:
    """What the child runs."""
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    faulthandler.register(signal.SIGUSR1)
    config = msgspec.json.decode(_taken(asked), type=RunConfig)
    while data := _taken(asked):
        answer = _called(config, msgspec.msgpack.decode(data, type=Question))
        sys.stdout.flush()
        _put(answers, msgspec.json.encode(answer))


def _called(config: RunConfig, question: Question) -> Logged:
    try:
        field, given, more = _given(config, question)
    except (AgentRLError, msgspec.MsgspecError) as error:
        field = _FIELDS[type(question)]
        whose = f"{KINDS[field].flag} {getattr(config, field)}: the function"
        told = f"{whose} is not called, for what it is given cannot be read: {error}"
        return Logged(told=told, call="lost")
    return logged(field, config, question.iteration, given, *more)


def _given(config: RunConfig, question: Question) -> tuple[str, Any, tuple[float, ...]]:
    if isinstance(question, AboutRollouts):
        file = Path(question.file)
        samples = samples_of(file, config, decoder(config))
        file.unlink()  # all of it is in memory
        return ROLLOUT, samples, (question.seconds,)
    if isinstance(question, AboutGroups):
        groups = (msgspec.msgpack.decode(each, type=ScoredGroup) for each in question.groups)
        return ALL_SAMPLES, of_groups(groups, config), ()
    usual = keys_of(config)
    sets = {
        name: scored(rows, question.keys.get(name, usual), found)
        for name, (rows, found) in question.sets.items()
    }
    return EVALUATION, sets, ()


def decoder(config: RunConfig) -> Callable[[list[int]], str]:
    """Text of token ids, by the tokenizer of the run's model, which is read for the first."""

    def decode(ids: list[int]) -> str:
        text: str = tokenizer_of(str(config.hf_checkpoint)).decode(ids)
        return text

    return decode
