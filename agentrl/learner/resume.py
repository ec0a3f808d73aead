"""Where a learner begins: at the run's first weights, or after its newest whole checkpoint.

The restored weights are always published anew, under a number that no weights ever had, before
anything is generated: whatever engines hold was trained by a process that is gone. A number that
was announced is used, whether its push ended or not. Refused is a checkpoint that does not fit the
ledger: older than what the buffer has let go, or resting on a version that the ledger lacks.
"""

import logging
from pathlib import Path

import msgspec

from agentrl.algorithms.base import Algorithm
from agentrl.config.first_weights import brings_optimizer
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.eval_weights import EVALUATED
from agentrl.learner.backend import TrainBackend
from agentrl.learner.checkpointing import CheckpointWriter, restore_newest
from agentrl.learner.checkpoints import Checkpoint, require_covered
from agentrl.learner.collective_errors import by_source
from agentrl.learner.folders import mend
from agentrl.learner.schedule import KEPT, Save
from agentrl.numbered import candidates, is_numbered, literal, numbered, pattern_of
from agentrl.wire.messages import Welcome

__all__ = ["Checkpoints", "agree", "hf_directory", "keeps_models", "root_of", "run_path_of"]

logger = logging.getLogger(__name__)


def agree(backend: TrainBackend, welcome: Welcome) -> Welcome:
    """`welcome` of the source rank, on every rank."""
    data = msgspec.msgpack.encode(welcome) if backend.is_source else None
    return msgspec.msgpack.decode(backend.broadcast_bytes(data), type=Welcome)


class Checkpoints:
    """The checkpoints of a run. Every call is collective."""

    def __init__(self, algorithm: Algorithm, backend: TrainBackend) -> None:
        self._cfg = cfg = algorithm.cfg
        self._algorithm = algorithm
        self._backend = backend
        self._root = root_of(cfg)
        self._writer = CheckpointWriter(
            self._root,
            backend,
            run_id=cfg.run_id or "",
            run_path=run_path_of(cfg),
            keep=KEPT,
            retain=_retained(cfg, self._root),
            files=self._files,
        )

    def restore(self, welcome: Welcome) -> Checkpoint | None:
        """Load the run's newest whole checkpoint, else what `--load` names; None when the run has
        none of its own. `welcome`: what the ledger holds.

        Raises ConfigError when `--load` names nothing, when the folder holds another run's (their
        leases are in no ledger of this one) and when it has none that covers the retired leases;
        DataError for one whose version is in no row of the ledger.
        """
        found = restore_newest(self._root, self._backend)
        if found is not None and found.manifest.run_id != (self._cfg.run_id or ""):
            raise ConfigError(
                f"--save {self._root} holds checkpoints of the run {found.manifest.run_id}, not of "
                f"{self._cfg.run_id}: save elsewhere, and take the weights along with --load"
            )
        self._refuse_gap(found, welcome)
        if found is None and self._cfg.load is not None and brings_optimizer(self._cfg):
            first = restore_newest(Path(self._cfg.load), self._backend)
            if first is None:
                raise ConfigError(f"--load {self._cfg.load}: there is no checkpoint")
            self._restore_algorithm(first)
            logger.info("the first weights are those of %s", first.directory)
        self._writer.begin(found)
        by_source(self._backend, lambda: _mend(self._cfg), None)
        if found is not None:
            self._restore_algorithm(found)
        return found

    def _files(self) -> dict[str, bytes]:
        kept = _AlgorithmState(self._algorithm.state_name, self._algorithm.state())
        return {_ALGORITHM: msgspec.msgpack.encode(kept)}

    def _restore_algorithm(self, found: Checkpoint) -> None:
        """Give the algorithm what it left there; another's says nothing to it."""
        kept = by_source(
            self._backend, lambda: _algorithm_state(found.directory), _AlgorithmState | None
        )
        if kept is None:
            return
        if kept.name in (self._algorithm.state_name, self._algorithm.name):
            self._algorithm.restore(kept.state)
        elif kept.state:
            logger.warning(
                "%s holds the state of %s; %s begins without one",
                found.directory,
                kept.name,
                self._algorithm.state_name,
            )

    def _refuse_gap(self, found: Checkpoint | None, welcome: Welcome) -> None:
        """A checkpoint that the ledger has gone past, or that it does not know."""
        newest = 0 if found is None else found.iteration
        require_covered(self._root, newest, welcome.retired_through)
        if found is not None and all(row.version != found.version for row in welcome.versions):
            raise DataError(
                f"{found.directory} rests on version {found.version}, which the ledger lacks: it is"
                " older than the checkpoint. Bring the right ledger.db back, or move the checkpoint"
                " away to go on from the one before"
            )

    def save(self, step: Save) -> None:
        """Write the state, or, with `--async-save`, begin to write it."""
        write = self._writer.begin_save if self._cfg.async_save else self._writer.save
        write(step.iteration, step.version, step.recipe)

    def end(self, waits: bool) -> bool:
        """Whether the checkpoint that was begun is whole. `waits`: wait until it is."""
        return self._writer.end_save(waits=waits)


#: What the algorithm remembers, in a checkpoint. One of an older release has none.
_ALGORITHM = "algorithm.msgpack"


class _AlgorithmState(msgspec.Struct, frozen=True):
    """`name`: `Algorithm.state_name`; of an older release, the class's alone."""

    name: str
    state: bytes


def _algorithm_state(directory: Path) -> _AlgorithmState | None:
    try:
        data = (directory / _ALGORITHM).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.msgpack.decode(data, type=_AlgorithmState)


def keeps_models(cfg: RunConfig) -> bool:
    """Whether a model is written beside every checkpoint, and not at the end alone."""
    return cfg.save_hf is not None and is_numbered(cfg.save_hf)


def hf_directory(cfg: RunConfig, iteration: int) -> Path:
    """Where the model goes that is trained for so many iterations."""
    if cfg.save_hf is not None:
        return numbered(cfg.save_hf, iteration)
    if cfg.run_id is None:
        raise ConfigError("the learner needs --save-hf or --run-id to know where weights are saved")
    return Path(cfg.run_dir) / cfg.run_id / "hf"


def _mend(cfg: RunConfig) -> None:
    """Put right what killed writers have left of weights for evaluations and of models."""
    if cfg.eval_only:  # the folders are those of a run that may be going on
        return
    mend(root_of(cfg) / EVALUATED, lambda _: True)
    model = Path(cfg.save_hf or literal(str(hf_directory(cfg, 0))))
    name = pattern_of(model.name)
    for folder in candidates(str(model.parent)):
        mend(folder, lambda found: name.fullmatch(found) is not None)


def run_path_of(cfg: RunConfig) -> str:
    """The run's directory, which may have been renamed since it began; empty for none."""
    if cfg.is_continued:
        return str(Path(cfg.resume).absolute())
    return "" if cfg.run_id is None else str((Path(cfg.run_dir) / cfg.run_id).absolute())


def _retained(cfg: RunConfig, root: Path) -> int:
    """Of every how many iterations a checkpoint is kept for good; 0: of none. What a folder of the
    user's own gets, it keeps."""
    if cfg.save_retain_interval is not None:
        return cfg.save_retain_interval
    is_runs_own = cfg.run_id is not None and root == Path(cfg.run_dir) / cfg.run_id / "recovery"
    return 0 if is_runs_own else 1


def root_of(cfg: RunConfig) -> Path:
    """Where the run's checkpoints go."""
    if cfg.save is not None and not cfg.eval_only:  # it may be the folder of the run that is scored
        return Path(cfg.save)
    if cfg.run_id is None:
        raise ConfigError("the learner needs --save or --run-id to know where checkpoints go")
    return Path(cfg.run_dir) / cfg.run_id / "recovery"
