"""`Roster`: the processes of a run, which of them are away, and what the run does without. Pure.

there -> lost: its node is gone               -> there, at another place
      -> down: it has ended too often to try  -> there, once another iteration was made
"""

from collections.abc import Collection, Iterable

from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.kinds import KINDS, ProcessKind
from agentrl.cluster.spec import RunSpec

__all__ = ["Roster"]


class Roster:
    """`spec` and `orders` are of the whole run, as if nothing were away."""

    def __init__(self, spec: RunSpec, orders: Iterable[ProcessOrder]) -> None:
        self.spec = spec
        self.orders = {order.name: order for order in orders}
        self.lost: set[str] = set()
        self.down: set[str] = set()

    def kind(self, name: str) -> ProcessKind:
        """The kind of a process."""
        return self.orders[name].kind

    def of_kind(self, kind: ProcessKind) -> list[str]:
        """Names of the processes of a kind."""
        return [name for name in self.orders if self.kind(name) == kind]

    def parts(self, name: str) -> list[str]:
        """All parts of the engine that `name` is a part of; another process has no others."""
        if self.kind(name) != "engine":
            return [name]
        return [each for each in self.of_kind("engine") if engine_of(each) == engine_of(name)]

    @property
    def together(self) -> set[str]:
        """Processes that live and die together."""
        engines = self.of_kind("engine") if self.spec.config.colocate else []
        return {*self.of_kind("learner"), *engines}

    @property
    def gone(self) -> set[str]:
        """The lost and those that stay down, with the other parts of their engines."""
        return {part for name in self.lost | self.down for part in self.parts(name)}

    @property
    def left(self) -> list[str]:
        """Engines and agent workers that are there."""
        gone = self.gone
        return [n for n in self.orders if n not in gone and KINDS[self.kind(n)].is_spare]

    @property
    def unused(self) -> set[str]:
        """Copies of services that no agent worker uses: their node has another, or they are on
        none."""
        used = {name for copies in self.spec.copies_used.values() for name in copies}
        return {*self.of_kind("node-service")} - used

    @property
    def after_copies(self) -> set[str]:
        """Agent workers that start only when the copies of services that they use are ready."""
        return {name for name, copies in self.spec.copies_used.items() if copies}

    def has_copies(self, worker: str) -> bool:
        """Whether none of the copies that an agent worker uses is away."""
        return self.gone.isdisjoint(self.used_by(worker))

    def used_by(self, worker: str) -> list[str]:
        """The copies of services that an agent worker uses."""
        return self.spec.copies_used.get(worker, [])

    @property
    def told(self) -> RunSpec:
        """What a process that is started from now on is told."""
        return self.spec.without_engines(self.gone)

    def can_go_on_without(self, names: Collection[str]) -> bool:
        """Whether others of each sort are left that are not away."""
        facts = {name: KINDS[self.kind(name)] for name in names}
        with_them = {self.kind(name) for name in names}
        kinds = {n: kind for n, kind in facts.items() if kind.is_beside not in with_them}
        if not all(kind.is_spare for kind in kinds.values()):
            return False
        sorts = {self._sort(name) for name, kind in kinds.items() if kind.is_needed}
        gone = self.gone | {part for name in names for part in self.parts(name)}
        left = {self._sort(name) for name in self.orders if name not in gone}
        shared = self.spec.config.colocate and sorts != {"worker"}
        return sorts <= left and not shared

    def can_stay_down(self, name: str) -> bool:
        """Whether the run goes on without this one, with another that does the same. Training needs
        no engine of evaluations, but evaluations would wait for the last of them."""
        return self.can_go_on_without([name]) and bool(self.others(name))

    def others(self, name: str) -> list[str]:
        """Those that are left of its sort."""
        away = self.gone | {*self.parts(name)}
        return [each for each in self._alike(name) if each not in away]

    def lack(self, name: str) -> str:
        """What the run lacks without `name`, the last of its sort, in a clause; empty where it had
        no others."""
        gone, own = self.gone, self.parts(name)
        away = [each for each in self._alike(name) if each in gone and each not in own]
        told = ", and no other of its kind is left" if away else ""
        if self.kind(name) == "eval-engine":
            told = ", and evaluations (--eval-mode apart) have no engine left"
        return told + (f" ({', '.join(away)}: down or lost before)" if away else "")

    def _alike(self, name: str) -> list[str]:
        return [each for each in self.orders if self._sort(each) == self._sort(name)]

    def _sort(self, name: str) -> str:
        """The kind of a process; of an engine which: who prefills needs those that decode."""
        if self.kind(name) != "engine":
            return self.kind(name)
        engines: dict[str, str] = {engine.name: engine.kind for engine in self.spec.engines}
        return engines.get(engine_of(name), "engine")
