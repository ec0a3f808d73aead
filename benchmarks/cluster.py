"""What a run on several nodes loses when a node is lost, again and again.

    python -m benchmarks.cluster [--times 10] [--roles engine ...] [--output build/cluster]

Network namespaces are the nodes (`tests/integration/namespaces.py`; it needs root): each has a
network, a host name, a disk and processes of its own, and real Ray. In a run of the default job a
node that has one role is cut off `--times` times: no packet goes in or out. When the run has told
that it is lost, its processes are killed; later the node comes back with an empty disk, Ray is
started there, and the run places what was lost again. The role `program` is the program itself,
which is killed and continued with `--resume` on the cluster that goes on.

`notices`: seconds from the cut to the line that tells of the loss. `goes on`: from that line to the
second iteration after it, where the run needs no other node. `whole again`: from the moment at
which there is a node with room (Ray is started on the node that came back; for an agent worker a
third node is there), or that of `--resume`, until what was lost is placed and started, an engine
gets requests, and two iterations more are trained. A role is `hung` where one of these did not come
in `LIMIT_S`, or the program ended.

Each role is a run of its own, which is continued at its end for a few iterations more and ends by
itself: the ledger is then read whole. What was found of a role is kept in the folder of `--output`,
so that roles can be measured in parts; all that are there are reported.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from agentrl.cluster.layout import processes_of
from benchmarks import RESULTS, ROOT, Row, commit, positive, report
from benchmarks.async_vs_sync import iterations
from benchmarks.survival import accounts
from tests.integration.namespaces import Nodes, nodes, short_folder

#: Seconds that a run is given for each thing that is waited for.
LIMIT_S = 1200.0
MORE_ITERATIONS = 3


class Role(msgspec.Struct, frozen=True):
    """`flags` place `process` on a node of its own, not the first. `cpus`: processors of each node.
    `routed`: it does its work only when the learner has told the router of it. `is_needed`: without
    it nothing is trained. `has_spare`: another node has room for it."""

    flags: str
    process: str = ""
    cpus: tuple[int, ...] = (2, 1)
    routed: bool = False
    is_needed: bool = False
    has_spare: bool = False


ROLES = {
    "engine": Role("--rollout-num-gpus 2 --num-agent-workers 1", "engine-1", routed=True),
    "learner rank and engine under --colocate": Role(
        "--colocate --async-buffer-size 0 --num-agent-workers 1 --actor-num-nodes 2", "learner-1",
        cpus=(1, 1), is_needed=True,
    ),
    "learner rank": Role(
        "--rollout-num-gpus 1 --num-agent-workers 1 --actor-num-nodes 2", "learner-1",
        cpus=(1, 1, 1), is_needed=True,
    ),
    "agent worker": Role(
        "--rollout-num-gpus 1 --num-agent-workers 2", "worker-1", (2, 1, 1), has_spare=True
    ),
    "program": Role("--rollout-num-gpus 1 --num-agent-workers 2"),
}  # fmt: skip
FLAGS = (
    "--device cpu --actor-num-gpus-per-node 1 --rollout-batch-size 8 --skip-eval-before-train "
    "--save-interval 2 --num-rollout 5000"
)


class Kept(msgspec.Struct, frozen=True):
    """What was found of a role, and the commit that was measured."""

    commit: str
    rows: list[Row]


class HungError(Exception):
    """Something did not come in `LIMIT_S`, or the program has ended."""


class Victim:
    """A run on a cluster, that is told of by its console and by its files."""

    def __init__(self, cluster: Nodes, role: Role) -> None:
        self._cluster = cluster
        self.path = cluster.folder / "local/runs/run"
        self._said: list[str] = []
        shared = cluster.folder / "shared"
        places = f"--run-dir {self.path.parent} --run-id run --save {shared}/save"
        flags = f"{FLAGS} {role.flags} {places}".split()
        tried = self._start(*flags, "--dry-run")
        tried.wait(LIMIT_S)
        self._listener.join()
        self._placed = self.said
        self._said.clear()
        self._program = self._start(*flags)

    def _start(self, *flags: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(ROOT / "train_async.py"), "--ray-address"]
        env = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        program = self._cluster.program([*command, self._cluster.address, *flags], ROOT, env)
        self._listener = threading.Thread(target=lambda: self._said.extend(program.stdout or ()))
        self._listener.start()
        return program

    @property
    def said(self) -> str:
        return "".join(self._said)

    @property
    def num_steps(self) -> int:
        path = self.path / "metrics.jsonl"
        return len(iterations(path.read_text())) if path.exists() else 0

    def seconds_until(self, is_so: Callable[[], bool]) -> float:
        begin = time.monotonic()
        while not is_so():
            if self._program.poll() is not None or time.monotonic() - begin > LIMIT_S:
                raise HungError(self.said[-3000:])
            time.sleep(0.05)
        return time.monotonic() - begin

    def trains(self, more: int = 2) -> float:
        goal = self.num_steps + more
        return self.seconds_until(lambda: self.num_steps >= goal)

    def counts(self, words: str, log: str = "") -> int:
        """How often the console, or a log of the first node, says `words`."""
        path = self.path / "logs" / f"{log}.log"
        if not log:
            return self.said.count(words)
        return path.read_text().count(words) if path.exists() else 0

    def node_of(self, process: str) -> int:
        """Where a process is: as it was told last, else as a dry run tells it."""
        again = re.findall(rf" is placed again on (\S+).*: .*\b{process}\b", self.said)
        first = re.findall(rf"^on (\S+): .*\b{process}\b", self._placed, re.MULTILINE)
        (address,) = again[-1:] or first
        ips = [self._cluster.ip(node) for node in range(len(self._cluster.num_cpus))]
        return ips.index(address)

    def kill(self) -> None:
        """The program alone; its other processes end by themselves."""
        self._program.kill()
        self._program.wait()
        begin = time.monotonic()
        while processes_of(self.path):
            if time.monotonic() - begin > LIMIT_S:
                raise SystemExit(f"processes {processes_of(self.path)} outlive their program")
            time.sleep(0.05)

    def resume(self, *flags: str) -> None:
        self._program = self._start("--resume", str(self.path), *flags)

    def finish(self) -> int:
        """Continue to an end of its own; returns the exit code."""
        self.kill()
        steps = [line.step for line in iterations((self.path / "metrics.jsonl").read_text())]
        self.resume("--num-rollout", str(max(steps) + MORE_ITERATIONS))
        return self._program.wait(LIMIT_S)


def lose_a_node(cluster: Nodes, victim: Victim, role: Role) -> dict[str, float]:
    """Cut, kill and bring back once the node that has the role now; seconds."""
    found: dict[str, float] = {}
    node = victim.node_of(role.process)
    assert node > 0, victim.said
    lost, placed = victim.counts(" is lost: "), victim.counts(" is placed again on ")
    routed = victim.counts(f"{role.process} is routed", "learner-0")
    cluster.cut(node)
    found["notices"] = victim.seconds_until(lambda: victim.counts(" is lost: ") > lost)
    cluster.kill(node)
    begin = time.monotonic()
    if not role.is_needed:
        found["goes on"] = victim.trains()
    if not role.has_spare:
        begin = time.monotonic()
        cluster.revive(node)
    victim.seconds_until(lambda: victim.counts(" is placed again on ") > placed)
    if role.routed:
        words = f"{role.process} is routed"
        victim.seconds_until(lambda: victim.counts(words, "learner-0") > routed)
    victim.trains()
    found["whole again"] = time.monotonic() - begin
    if role.has_spare:
        cluster.revive(node)
    return found


def lose_the_program(victim: Victim) -> dict[str, float]:
    victim.kill()
    begin = time.monotonic()
    victim.resume()
    victim.trains()
    return {"whole again": time.monotonic() - begin}


def hurt(name: str, times: int, output: Path) -> list[Row]:
    """All about one role."""
    role, found, hung = ROLES[name], defaultdict[str, list[float]](list), 0
    with short_folder() as folder, nodes(folder, *role.cpus) as cluster:
        victim = Victim(cluster, role)
        try:
            victim.trains()
            for time_ in range(times):
                is_program = name == "program"
                once = (
                    lose_the_program(victim) if is_program else lose_a_node(cluster, victim, role)
                )
                for what, seconds in once.items():
                    found[what].append(seconds)
                victim.trains(MORE_ITERATIONS)  # a checkpoint lies between two losses
                print(name, time_, {what: round(s, 1) for what, s in once.items()}, flush=True)
            code = victim.finish()
        except HungError as error:
            hung += 1
            print(f"{name} hung: {error}", flush=True)
            code = -1
        finally:
            (output / f"{name}.console").write_text(victim.said)
        return rows_of(name, found, hung, code, victim.path)


def rows_of(
    name: str, found: Mapping[str, list[float]], hung: int, code: int, path: Path
) -> list[Row]:
    num = max(map(len, found.values()), default=0) + hung
    rows = [Row(f"{name}: lost and back", num, "times"), Row(f"{name}: hung", hung, "times", "0")]
    for what, seconds in found.items():
        rows.append(Row(f"{name}: {what}, median", round(statistics.median(seconds), 1), "s"))
        rows.append(Row(f"{name}: {what}, longest", round(max(seconds), 1), "s"))
    rows.append(Row(f"{name}: exit code", code, "code", "0"))
    for each, value, unit, bar in accounts(path):
        rows.append(Row(f"{name}: {each}", value, unit, bar))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=positive, default=10, help="losses of each role")
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    parser.add_argument("--output", type=Path, default=ROOT / "build/cluster")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.roles:
        measured = commit()
        found = hurt(name, args.times, args.output)
        (args.output / f"{name}.json").write_bytes(msgspec.json.encode(Kept(measured, found)))
    kept = [path for name in ROLES if (path := args.output / f"{name}.json").exists()]
    roles = [msgspec.json.decode(path.read_bytes(), type=Kept) for path in kept]
    rows = [row for role in roles for row in role.rows]
    result = report("cluster", rows, f"python -m benchmarks.cluster --times {args.times}")
    # roles are measured in parts, and the code may have changed between two of them
    result["commits"] = list(dict.fromkeys(role.commit for role in roles))
    (RESULTS / "cluster.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
