"""A real engine for a benchmark, on this machine's CPU."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.cluster.ports import free_ports
from agentrl.serving.control import EngineControl
from agentrl.serving.launch import engine_command
from agentrl.types import EngineAddress

__all__ = ["running_engine", "until_ready"]

_END_S = 60
Process = subprocess.Popen[bytes]


@contextmanager
def running_engine(
    model: Path | str,
    log: Path,
    *,
    name: str = "engine",
    dtype: str = "float32",
    extra: Mapping[str, Any] | None = None,
    is_exact: bool = False,
) -> Iterator[tuple[EngineAddress, Process]]:
    """An engine of the model, and its process. `extra`: fields of SGLang's ServerArgs. It calls its
    weights version 0, and is not ready yet."""
    port = free_ports(1)[0]
    spec = engine_command(
        model_path=str(model),
        port=port,
        name=name,
        device="cpu",
        dtype=dtype,
        extra=extra or {},
        is_exact=is_exact,
        weight_version="0",
    )
    with log.open("wb") as said:
        process = subprocess.Popen(
            spec.argv, env={**os.environ, **spec.env}, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        yield EngineAddress(name, f"http://127.0.0.1:{port}"), process
    finally:
        process.terminate()
        process.wait(_END_S)


async def until_ready(engine: EngineAddress, process: Process, limit_s: float) -> None:
    """Raises EngineError when it has ended, or is not ready after `limit_s`."""
    async with EngineControl(engine, timeout_s=10) as control:
        await control.wait_ready(limit_s, lambda: process.poll() is None)
