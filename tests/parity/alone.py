"""A Megatron backend of one rank, as most tests of parity want it."""

from collections.abc import Collection
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend

__all__ = ["open_alone"]


def open_alone(
    cfg: RunConfig,
    directory: Path,
    port: int,
    *,
    num_training_steps: int | None = None,
    models: Collection[str] = (),
    backend_class: type[MegatronBackend] = MegatronBackend,
) -> MegatronBackend:
    """The backend, which its caller closes."""
    return backend_class(
        cfg,
        directory,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        num_training_steps=num_training_steps,
        models=models,
    )
