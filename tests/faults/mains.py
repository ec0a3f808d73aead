"""What the processes of a lab are: the buffer's and the workers' production mains, the real router,
a learner on the production loop with a toy model, engines that speak SGLang's protocol.

In the production processes some calls are reported (`points.reports`), so that they can be ended in
their midst and the history knows what was acknowledged. What they do is left as it is.
"""

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from tests.faults.history import note
from tests.faults.points import reached, reports

__all__ = ["preload", "run"]


#: What the processes of a lab import, but for the standard library.
_ALL = (
    "sglang_router.launch_router",
    "agentrl.cluster.roles.__main__",
    "agentrl.cluster.roles.buffer",
    "agentrl.cluster.roles.worker",
    "tests.faults.engine",
    "tests.faults.env",
    "tests.faults.toy_learner",
)


def preload() -> None:
    """Import all that a process of a lab will need."""
    for module in _ALL:
        importlib.import_module(module)


def run(argv: list[str]) -> int:
    """Be the process `argv` until its end; returns its exit code."""
    kind, *rest = argv
    if kind == "router":
        return _router(rest)
    sys.addaudithook(_watch_pickles)
    if kind == "engine":
        from tests.faults.engine import main as engine

        return engine(int(rest[0]))
    if kind == "learner":
        from tests.faults.toy_learner import main as learner

        return learner(rest[0])
    return _role(kind, rest[0])


def _watch_pickles(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        note("unpickled", found=[str(argument) for argument in arguments])


def _role(name: str, spec: str) -> int:
    from agentrl.cluster.roles.__main__ import main

    if name == "buffer":
        _watch_commits()
    else:
        _watch_acks()
    return main([name, spec])


def _router(arguments: list[str]) -> int:
    from sglang_router.launch_router import main

    sys.argv = ["router", *arguments]
    main()
    return 0


def _watch_commits() -> None:
    """The points of a batch: columns written; on disk; rows about to be committed; nothing said."""
    from agentrl.buffer.ledger import Ledger
    from agentrl.buffer.rows import EpisodeRow, Row
    from agentrl.buffer.store import PayloadStore

    def note_retried(ledger: Ledger, rows: list[Row]) -> None:
        episodes = [row for row in rows if isinstance(row, EpisodeRow) and row.attempt]
        if episodes:
            note("retried", episodes=[(row.mint, row.index, row.attempt) for row in episodes])

    reports(PayloadStore, "append", lambda *_: reached("appended"))
    reports(PayloadStore, "sync", lambda *_: reached("synced"))
    reports(Ledger, "commit", lambda *_: reached("committing"), before=True)
    reports(Ledger, "commit", note_retried)
    reports(Ledger, "commit", lambda *_: reached("committed"))


def _watch_acks() -> None:
    from agentrl.wire.messages import Ack, Finished
    from agentrl.wire.outbox import Outbox
    from agentrl.wire.peer import BufferPeer

    def note_acked(peer: Any, message: object, columns: object) -> None:
        if not isinstance(message, Ack):
            return
        outbox: Outbox = peer._talk.outbox
        settled = set(message.seqs)
        for pending in _pending(outbox):
            if pending.seq in settled and isinstance(pending.message, Finished):
                report = pending.message.report
                note("acked", episode=report.id, outcome=report.outcome)

    reports(BufferPeer, "_take", note_acked, before=True)


def _pending(outbox: Any) -> Iterable[Any]:
    yield from list(outbox._waiting.values())
    for _, pending in list(outbox._sent.values()):
        yield pending
