"""A run under attack: real processes, and the hands that end them and start them again.

    buffer, worker-0, worker-1, router, engine-0, engine-1, learner-0      the driver is this test

A process that ends without an order fails the test, with the end of its log, unless the test says
that it `may_need_a_restart`. Every wait has a deadline, and one that is missed is a wedge.
"""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from agentrl.cluster.host import ExitNotice
from agentrl.cluster.layout import INCARNATION, RUN_MARK
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.supervision import counts_against_lease
from agentrl.config.run import RunConfig
from agentrl.errors import EngineError
from agentrl.serving.control import EngineControl
from agentrl.serving.router_control import RouterControl
from agentrl.wire.messages import PeerLost
from tests.faults import history, points
from tests.faults.driving import Driving
from tests.faults.lab_spec import FLAGS, places_of, router_flags, spec_of
from tests.faults.nursery import Birth, Nursery

__all__ = ["PATIENCE_S", "Lab", "WedgedError"]

#: Seconds without the awaited state after which a lab counts as wedged.
PATIENCE_S = float(os.environ.get("AGENTRL_FAULTS_PATIENCE_S", "300"))


class WedgedError(AssertionError):
    """A state did not come about in time."""


class Lab:
    """`with Lab(nursery, folder, model) as lab`; `flags` as in `RunConfig`. `continued`: the folder
    holds a run already. `via`: where peers reach the buffer, when a proxy stands between.
    `environment`: by name of a process, further variables that it has."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        model: Path,
        *,
        continued: bool = False,
        token_s: float = 0.002,
        via: str | None = None,
        environment: Callable[[str], Mapping[str, str]] = lambda _: {},
        **flags: Any,
    ) -> None:
        self._nursery = nursery
        self.folder = folder
        self.run = folder / "run"
        self.run.mkdir(exist_ok=continued)
        self._token_s = token_s
        self._environment = environment
        self._pids: dict[str, int] = {}
        self._incarnations: dict[str, str] = {}
        self._left: set[int] = set()
        self._restarts: dict[str, int] = {}
        self.num_faults = 0
        config = RunConfig(**places_of(self.run, model) | FLAGS | flags)
        self.buffer_address = f"ipc://{folder}/b.sock"
        self.spec = spec_of(config, self.run, model, via or self.buffer_address)
        self._specs = {"": folder / "spec.json", "buffer": folder / "buffer.json"}
        self._specs[""].write_bytes(msgspec.json.encode(self.spec))
        own = msgspec.structs.replace(self.spec, buffer_address=self.buffer_address)
        self._specs["buffer"].write_bytes(msgspec.json.encode(own))
        self.driving = Driving(self.spec.buffer_address)

    @property
    def names(self) -> list[str]:
        """All processes, in starting order."""
        workers = [f"worker-{i}" for i in range(self.spec.config.num_agent_workers)]
        engines = [engine.name for engine in self.spec.engines]
        return ["buffer", "router", *engines, *workers, "learner-0"]

    def __enter__(self) -> Self:
        for name in self.names:
            self.start(name)
        self.driving.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driving.__exit__(kind, error, trace)
        self.kill_all()

    # ---- processes ----

    def start(self, name: str) -> None:
        """Start a process; one of its name may still be there, and then bears the name no more."""
        incarnation = uuid.uuid4().hex
        env = {
            history.FOLDER: str(self.folder),
            history.NAME: name,
            INCARNATION: incarnation,
            RUN_MARK: str(self.run),
            "AGENTRL_LAB_TOKEN_S": str(self._token_s),
            **self._environment(name),
        }
        log = self.folder / f"{name}.log"
        birth = Birth(name, self._argv(name), env, str(log))
        self._pids[name] = self._nursery.start(birth)
        self._left.discard(self._pids[name])
        self._incarnations[name] = incarnation

    def _argv(self, name: str) -> list[str]:
        spec = str(self._specs.get(name, self._specs[""]))
        kind = name.partition("-")[0]
        if kind == "engine":
            (engine,) = [engine for engine in self.spec.engines if engine.name == name]
            return ["engine", engine.url.rpartition(":")[2]]
        if kind == "router":
            return ["router", *router_flags(self.spec)]
        return ["learner", spec] if kind == "learner" else [name, spec]

    def pid(self, name: str) -> int:
        """The process that bears the name now."""
        return self._pids[name]

    def log_tail(self, name: str, num_chars: int = 3000) -> str:
        """The end of its log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-num_chars:] if path.exists() else "(no log)"

    def code(self, name: str) -> int | None:
        """How the process ended; None while it lives."""
        return self._nursery.code(self._pids[name])

    def ended(self, name: str, deadline_s: float = PATIENCE_S) -> int:
        """Wait until the process has ended; its exit code."""
        return self._nursery.wait(self._pids[name], deadline_s)

    # ---- faults ----

    def fault(self, what: str, name: str, **facts: Any) -> None:
        """Write down that this was done to a process."""
        self.num_faults += 1
        history.note(what, who=name, folder=self.folder, **facts)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, and write it down."""
        self.fault(number.name, name, pid=self._pids[name])
        os.kill(self._pids[name], number)

    def kill(self, name: str) -> None:
        """SIGKILL, seen to have worked."""
        self.may_end(name)
        self.signal(name, signal.SIGKILL)
        code = self.ended(name)
        assert code == -signal.SIGKILL, f"{name} ended with {code}\n{self.log_tail(name)}"

    def order(self, name: str, point: str, how: str) -> None:
        """Let something happen to a process at a named point, the next time that it is there."""
        self.fault("ordered", name, point=point, how=how)
        self.may_end(name)
        points.order(self.folder, name, point, how)

    def end_at(self, name: str, point: str, how: str = "kill") -> history.Record:
        """Let a process end at a named point, and wait until it has; what it wrote of it."""
        num_before = len(history.read(self.folder, "ended"))
        self.order(name, point, how)
        self.wait(lambda: self.code(name) is not None, f"{name} ends at {point}")
        code = self.code(name)
        assert code == points.code_of(how), f"{name} ended with {code}\n{self.log_tail(name)}"
        record = history.read(self.folder, "ended")[num_before]
        assert (record.who, record.data["point"], record.data["how"]) == (name, point, how)
        return record

    def stop_at(self, name: str, point: str) -> None:
        """Let a process stand still at a named point, and wait until it does."""
        num_before = len(history.read(self.folder, "ended"))
        self.order(name, point, "stop")
        self.wait(
            lambda: len(history.read(self.folder, "ended")) > num_before,
            f"{name} stands still at {point}",
        )

    def adopt(self, name: str, pid: int) -> None:
        """Let an earlier process bear its name again: the later one has ended."""
        self._pids[name] = pid

    def wake(self, pid: int) -> None:
        """SIGCONT to a process that stands still."""
        os.kill(pid, signal.SIGCONT)

    def ended_as(self, pid: int) -> int:
        """Wait until a process that bears no name any more has ended; its exit code."""
        return self._nursery.wait(pid, PATIENCE_S)

    def may_end(self, name: str) -> None:
        """The end of the process that bears this name now is no surprise."""
        self._left.add(self._pids[name])

    def may_need_a_restart(self, name: str, times: int) -> None:
        """The process may end by itself so many times; it is started again, as by the driver."""
        self._restarts[name] = times

    def kill_all(self) -> None:
        """SIGKILL of every process at once."""
        alive = [name for name in self._pids if self.code(name) is None]
        for name in alive:
            self.may_end(name)
            os.kill(self._pids[name], signal.SIGKILL)
        for name in alive:
            self.ended(name)

    def replace(self, name: str) -> None:
        """Start a process again as the driver would that saw it end."""
        kind = name.partition("-")[0]
        if kind == "worker":
            self.driving.tell(PeerLost(name, self._incarnations[name]))
        if kind == "learner":
            notice = ExitNotice(name, self._pids[name], self.code(name) or 0, False, "learner")
            failed = counts_against_lease(notice)
            self.driving.tell(PeerLost(name, self._incarnations[name], failed=failed))
        if kind == "engine":
            self.driving.in_loop(_unroute, self.spec, name)
        self.start(name)
        if kind in ("engine", "router"):
            self.driving.in_loop(_ready, self.spec, name)
            self.driving.ask_for_weights()

    # ---- waiting ----

    def wait(self, ready: Callable[[], bool], what: str, deadline_s: float = PATIENCE_S) -> None:
        """Until `ready()`. WedgedError at the deadline; AssertionError when a process ended that
        nobody ended."""
        deadline = time.monotonic() + deadline_s
        while not ready():
            if self.driving.failure is not None:
                raise self.driving.failure
            for name, pid in list(self._pids.items()):
                code = self._nursery.code(pid)
                is_done = name == "learner-0" and code == 0
                if code is not None and not is_done and pid not in self._left:
                    self._restart(name, code)
            if time.monotonic() > deadline:
                raise WedgedError(f"not within {deadline_s:g} s: {what}\n{self._told()}")
            time.sleep(0.01)

    def _restart(self, name: str, code: int) -> None:
        self._restarts[name] = self._restarts.get(name, 0) - 1
        if self._restarts[name] < 0:
            raise AssertionError(f"{name} ended with {code}:\n{self.log_tail(name)}")
        self.may_end(name)
        self.replace(name)

    @property
    def steps(self) -> int:
        """The last iteration that the driver heard of."""
        return self.driving.state.steps

    def steps_more(self, number: int) -> None:
        """Wait for so many iterations that were never made before, or the end of the run."""
        most = max((r.data["lease"] for r in history.read(self.folder, "trained")), default=0)
        goal = most + number
        self.wait(
            lambda: self.learned() or self.steps >= goal, f"iteration {goal}", PATIENCE_S * number
        )

    def learned(self) -> bool:
        """Whether the learner has come to its own end."""
        return self.code("learner-0") == 0

    def finish(self, deadline_s: float = 5 * PATIENCE_S) -> None:
        """Let the run come to its end, drain it and stop everything."""
        self._drain(deadline_s)
        self.stop()

    def _drain(self, deadline_s: float) -> None:
        self.wait(self.learned, "the learner ends", deadline_s)
        self.driving.drain("the run is complete")
        self.wait(lambda: self.driving.state.drained, "the buffer is drained")

    def finish_without(self, name: str) -> None:
        """As `finish`; a process that stands still takes no part in it."""
        self._drain(5 * PATIENCE_S)
        self.kill(name)
        self.stop()

    def is_idle(self) -> bool:
        """Whether every turn that was begun has ended, and all episodes that may be minted have
        been: the engines saw none in the last second."""
        begun, ended = (history.read(self.folder, f"turn_{w}") for w in ("begun", "ended"))
        return len(begun) == len(ended) and ended[-1].at < self.clock() - 1

    @staticmethod
    def clock() -> float:
        """Seconds, as the history counts them."""
        return time.monotonic()

    def stop(self) -> None:
        """SIGTERM to all that is left, the buffer last."""
        for name in reversed(self.names):
            if self.code(name) is None:
                self.may_end(name)
                os.kill(self._pids[name], signal.SIGTERM)
                self.ended(name)

    def _told(self) -> str:
        alive = {name: self.code(name) for name in self._pids}
        tails = "\n".join(f"-- {name}\n{self.log_tail(name, 800)}" for name in self._pids)
        state = self.driving.state
        return f"steps {state.steps}, leases {state.leases}, codes {alive}\n{tails}"


async def _unroute(spec: RunSpec, name: str) -> None:
    assert spec.router_url is not None
    (engine,) = [engine for engine in spec.engines if engine.name == name]
    async with RouterControl(spec.router_url, timeout_s=PATIENCE_S) as router:
        with contextlib.suppress(EngineError):  # the learner may have done it in this moment
            await router.remove(engine, deadline_s=PATIENCE_S)


async def _ready(spec: RunSpec, name: str) -> None:
    assert spec.router_url is not None
    with anyio.fail_after(PATIENCE_S):
        if name == "router":
            async with RouterControl(spec.router_url, timeout_s=5) as router:
                await router.wait_ready(PATIENCE_S)
        for engine in spec.engines:
            if engine.name == name:
                async with EngineControl(engine, timeout_s=5) as control:
                    try:
                        await control.wait_alive(PATIENCE_S)
                    except EngineError as error:
                        raise AssertionError(str(error)) from error
