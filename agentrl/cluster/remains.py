"""What a run left, checked before anything is started: whether it can be continued.

    ledger.db    its log and pages, the digest of each row, and that each is what its table holds
    payload/     that the trajectories of open groups are there, as long as they were
    --save       that a checkpoint covers what the buffer has let go; without a ledger, that none
                 is there

Only reads. What is found here would end the run later, after engines and learner have started.
"""

from pathlib import Path

from agentrl.buffer.ids import group_id
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.store import missing_bytes
from agentrl.config.places import checkpoint_root, kept_of
from agentrl.config.run import RunConfig
from agentrl.errors import StoreError
from agentrl.learner.checkpoints import DIGESTED_BYTES, find_whole, require_covered

__all__ = ["judge"]

_MAX_TOLD = 8
_ADVICE = "bring it back from a copy, or take the run's weights into a new one with --load"


def judge(run: Path, config: RunConfig) -> list[str]:
    """Notes on checkpoints that are passed over. Raises StoreError when ledger or payloads of `run`
    are damaged, with what is lost; ConfigError when there is no checkpoint to go on from, DataError
    when all are damaged; EnvironmentSetupError while a buffer has the ledger."""
    ledger = run / "ledger.db"
    is_empty = not ledger.exists() or ledger.stat().st_size == 0
    if is_empty and not ledger.with_name("ledger.db-wal").exists():
        _require_nothing(run, config)
        return []
    with LedgerReader(ledger) as reader:
        state = reader.load()
    _require_payloads(run, state)
    if config.eval_only:
        return []
    return _require_checkpoint(_root(run, config), state)


def _root(run: Path, config: RunConfig) -> Path:
    return checkpoint_root(config.save, run, config.run_id or run.name)


def _require_nothing(run: Path, config: RunConfig) -> None:
    """No ledger, or one without a byte, is that of a run that ended as it began."""
    lost = f"{run / 'ledger.db'} is empty or gone"
    for name in ("payload", "recovery"):
        if any((run / name).glob("*")):
            raise StoreError(f"{lost}, and {run / name} is not: its rows are lost; {_ADVICE} {run}")
    if config.eval_only:
        return
    run_id = config.run_id or run.name
    kept = kept_of(_root(run, config), run_id)
    if kept is not None:
        raise StoreError(
            f"{lost}, and {kept.directory} is a checkpoint of the run {run_id}: its rows are lost."
            f" Bring the ledger back from a copy (it may be on the disk of another node, where the"
            f" run was started), or take the weights into a new run with --load {kept.directory}"
        )


def _require_payloads(run: Path, state: LedgerState) -> None:
    lost = [
        f"episode {group_id(row.mint)}/{row.index}: {what}"
        for row in state.episodes
        for stored in row.trajectories
        if (what := missing_bytes(run / "payload", stored.payload))
    ]
    if lost:
        shown = "".join(f"\n    {line}" for line in lost[:_MAX_TOLD])
        more = f"\n    and {len(lost) - _MAX_TOLD} more" if len(lost) > _MAX_TOLD else ""
        raise StoreError(
            f"{run / 'payload'} lacks trajectories that are yet to be trained on;"
            f" {_ADVICE} {run}:{shown}{more}"
        )


def _require_checkpoint(root: Path, state: LedgerState) -> list[str]:
    """The newest whole one has to cover what is retired: it is what the learner takes."""
    retired = next((mark.value for mark in state.marks if mark.key == "retired_through"), 0)
    found, damaged = find_whole(root, DIGESTED_BYTES)
    require_covered(root, found.iteration if found is not None else 0, retired)
    return [f"a checkpoint of the run is passed over: {why}" for why in damaged]
