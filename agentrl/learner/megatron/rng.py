"""The random generators of a rank: python's, numpy's, torch's and megatron-core's, as plain data.

Training draws nothing by itself (there is no dropout); a loss of the user's may.
"""

import random
from typing import Any

import msgspec
import numpy as np
import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

__all__ = ["Generators", "capture", "restore"]


class Generators(msgspec.Struct, frozen=True):
    """State of each generator. cuda is empty on a CPU host; tracker: megatron-core's, by name."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy_key: bytes
    numpy_position: int
    numpy_gauss: float | None
    torch: bytes
    cuda: bytes
    tracker: dict[str, bytes]


def capture() -> Generators:
    """The generators of this process as they are now."""
    _, key, position, has_gauss, gauss = np.random.get_state()
    return Generators(
        python=random.getstate(),
        numpy_key=np.asarray(key, dtype=np.uint32).tobytes(),
        numpy_position=int(position),
        numpy_gauss=float(gauss) if has_gauss else None,
        torch=_to_bytes(torch.get_rng_state()),
        cuda=_to_bytes(torch.cuda.get_rng_state()) if torch.cuda.is_available() else b"",
        tracker={k: _to_bytes(v) for k, v in get_cuda_rng_tracker().get_states().items()},
    )


def restore(state: Generators) -> None:
    """Set the generators of this process."""
    random.setstate(state.python)
    np.random.set_state(
        (
            "MT19937",
            np.frombuffer(state.numpy_key, dtype=np.uint32),
            state.numpy_position,
            int(state.numpy_gauss is not None),
            state.numpy_gauss or 0.0,
        )
    )
    torch.set_rng_state(_to_tensor(state.torch))
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state(_to_tensor(state.cuda))
    if state.tracker:
        get_cuda_rng_tracker().set_states({k: _to_tensor(v) for k, v in state.tracker.items()})


def _to_bytes(state: Any) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _to_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
