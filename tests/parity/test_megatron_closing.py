"""A learner that is closed leaves nothing running in its process."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms.rows import LossFn
from tests.parity.one_process import Open, open_backend

__all__ = ["open_backend"]


def threads_of_groups() -> set[str]:
    """Ids of the threads of gloo, and of the stores where ranks meet."""
    found = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError):  # it has ended
            if "gloo" in (name := path.read_text()) or "tcpstore" in name:
                found.add(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("name", "megatron"),
    [
        ("qwen3", {"overlap_grad_reduce": True, "use_distributed_optimizer": True}),
        ("qwen3-moe", {}),
        ("deepseek-v3", {}),
    ],
    ids=["dense", "experts", "latent attention"],
)
def test_the_threads_of_its_groups_end(
    name: str,
    megatron: dict[str, Any],
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    before = threads_of_groups()
    backend = open_backend(hf_model(name)[1], megatron)
    backend.run("policy", [packed([30, 7], 1)])
    backend.step("policy", [packed([30, 7], 1), packed([19], 2)], pg_loss)
    assert threads_of_groups() - before
    backend.close()
    assert not threads_of_groups() - before
