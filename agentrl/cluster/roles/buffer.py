"""The buffer process."""

from pathlib import Path

import anyio

from agentrl.buffer.server import run_buffer
from agentrl.buffer.settings import BufferSettings
from agentrl.cluster.signals import until_sigterm
from agentrl.cluster.spec import RunSpec
from agentrl.config.run import RunConfig
from agentrl.types import SamplingParams

__all__ = ["main", "sampling_of"]


def sampling_of(config: RunConfig) -> SamplingParams:
    """How training turns are sampled."""
    return SamplingParams(
        temperature=config.rollout_temperature,
        top_p=config.rollout_top_p,
        top_k=config.rollout_top_k,
        max_new_tokens=config.rollout_max_response_len,
        stop_token_ids=tuple(config.rollout_stop_token_ids),
    )


def main(spec: RunSpec) -> None:
    """Serve the ledger of `spec.run_dir` until SIGTERM."""
    sampling = sampling_of(spec.config)
    settings = BufferSettings.from_config(spec.config, spec.buffer_address, sampling)

    async def serve() -> None:
        await until_sigterm(lambda: run_buffer(settings, Path(spec.run_dir), keys=spec.peer_keys()))

    anyio.run(serve)
