"""The buffer process."""

from pathlib import Path

import anyio

from agentrl.buffer.server import run_buffer
from agentrl.buffer.settings import BufferSettings
from agentrl.cluster.signals import until_sigterm
from agentrl.cluster.spec import RunSpec
from agentrl.config.mixture import parts_of
from agentrl.config.sampling import training_turns

__all__ = ["main"]


def main(spec: RunSpec) -> None:
    """Serve the ledger of `spec.run_dir` until SIGTERM."""
    settings = BufferSettings.from_config(
        spec.config,
        spec.buffer_address,
        training_turns(spec.config),
        {part.name: training_turns(part.config) for part in parts_of(spec.config)},
    )

    async def serve() -> None:
        await until_sigterm(lambda: run_buffer(settings, Path(spec.run_dir), keys=spec.peer_keys()))

    anyio.run(serve)
