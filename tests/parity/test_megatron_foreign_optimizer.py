"""The optimizer of a checkpoint that megatron-core's own writer left: a run goes on with it."""

import argparse
import logging
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.config.torch_dist import Header, Index, Whole, read_header
from agentrl.errors import ConfigError, DataError
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone

pytestmark = pytest.mark.timeout(900)

Open = Callable[..., MegatronBackend]
PLAIN: dict[str, Any] = {}
BF16 = {"bf16": True}
DISTRIBUTED = {"use_distributed_optimizer": True}
EVERY_LAYOUT = "fully_reshardable"
ITS_OWN = "dp_reshardable"


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend; the one before is closed, as there can be only one."""
    backends: list[MegatronBackend] = []

    def make(model: str, megatron: dict[str, Any], **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron, **flags),
                hf_model(model).directory,
                free_ports(1),
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def save(folder: Path, backend: MegatronBackend, form: str, content: dict[str, Any]) -> None:
    """As Megatron's training does, with megatron-core's own optimizer and writer alone."""
    from megatron.core import dist_checkpointing, parallel_state

    model: Any = backend._trained["policy"].module[0]
    optimizer = backend._optimizer._optimizer
    told = content | {
        "distrib_optim_sharding_type": form,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    place = folder / "iter_0000002"
    place.mkdir(parents=True)
    weights = model.sharded_state_dict(metadata=told)
    state = {
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(
            model.sharded_state_dict(metadata=told), metadata=told
        ),
        "args": argparse.Namespace(num_layers=model.config.num_layers),
        "iteration": 2,
        "checkpoint_version": 3.0,
    }
    dist_checkpointing.save(state, str(place), content_metadata=content)
    (folder / "latest_checkpointed_iteration.txt").write_text("2")


def weights(backend: MegatronBackend) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in backend.hf_tensors()}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the last bit but one of float32: buffers of other lengths have other ends, which a CPU
    may round otherwise."""
    pairs = [(one[name], other[name]) for name in one]
    return one.keys() == other.keys() and all(
        torch.allclose(mine, theirs, rtol=2**-22, atol=2**-25) for mine, theirs in pairs
    )


@pytest.mark.parametrize(
    ("model", "writer", "reader", "content"),
    [
        ("qwen3", PLAIN, DISTRIBUTED, {}),
        ("qwen3-moe", DISTRIBUTED, PLAIN, {"non_homogeneous_layers": True}),
        ("qwen3-tied", BF16 | DISTRIBUTED, BF16, {}),
        ("qwen3-prime", BF16, BF16 | DISTRIBUTED, {"non_homogeneous_layers": True}),
    ],
    ids=["plain", "distributed", "distributed-bf16", "bf16"],
)
def test_a_run_goes_on_with_the_optimizer_of_megatrons_checkpoint(
    model: str,
    writer: dict[str, Any],
    reader: dict[str, Any],
    content: dict[str, Any],
    opened: Open,
    packed: Any,
    pg_loss: LossFn,
    tmp_path: Path,
) -> None:
    """Its next step is equal; not so where the weights alone are taken."""
    batches = [[packed([30, 7], 1)], [packed([19], 2)], [packed([40, 2], 4)]]
    first = opened(model, writer)
    for batch in batches[:2]:
        first.step("policy", batch, pg_loss)
    save(tmp_path, first, EVERY_LAYOUT, content)
    first.step("policy", batches[2], pg_loss)
    wanted = weights(first)
    again = opened(model, reader, load=str(tmp_path))
    assert (again._optimizer.completed_steps, again._optimizer.schedule_start) == (2, 2)
    again.step("policy", batches[2], pg_loss)
    assert are_equal(weights(again), wanted)
    for flags in ({"no_load_optim": True}, {"finetune": True}):
        alone = opened(model, reader | flags, load=str(tmp_path))
        assert alone._optimizer.completed_steps == 0
    alone.step("policy", batches[2], pg_loss)
    assert not are_equal(weights(alone), wanted)


def test_an_optimizer_in_the_buckets_of_its_layout_is_left_and_told(
    opened: Open,
    packed: Any,
    pg_loss: LossFn,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = opened("qwen3", DISTRIBUTED)
    first.step("policy", [packed([30, 7], 1)], pg_loss)
    save(tmp_path, first, ITS_OWN, {})
    with caplog.at_level(logging.WARNING):
        again = opened("qwen3", DISTRIBUTED, load=str(tmp_path))
    assert again._optimizer.completed_steps == 0
    assert "its optimizer is in buckets of the layout that wrote it, so that" in caplog.text


def flat(state: Index) -> Index:
    """As `fully_sharded_model_space` has the moments of weights that two ranks share."""
    return {
        key: Whole(one.dtype, (2, *[1] * len(one.shape[1:]), prod(one.shape) // 2), one.chunks)
        for key, one in state.items()
    }


def test_moments_that_cannot_be_read_are_refused_with_the_way_round(
    opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    """Those that are not there, that have another shape, and that a disk has damaged."""
    from agentrl.learner.megatron import foreign

    first = opened("qwen3", PLAIN)
    first.step("policy", [packed([30, 7], 1)], pg_loss)
    save(tmp_path, first, EVERY_LAYOUT, {})
    folder, header = tmp_path / "iter_0000002", read_header(tmp_path)
    assert header.steps == 1
    policy = first._trained["policy"]

    def load(state: Index) -> None:
        torn = Header(header.tensors, {}, state, header.steps)
        foreign.load_optimizer(folder, torn, policy.module, policy.optimizer, first._described)

    lacking = {key: one for key, one in header.state.items() if "exp_avg_sq" not in key}
    with pytest.raises(ConfigError, match=r"lacks optimizer.*; --no-load-optim takes the weights"):
        load(lacking)
    form = r"in the form fully_sharded_model_space: .* or give --no-load-optim"
    with pytest.raises(ConfigError, match=form):
        load(flat(header.state))
    key = "optimizer.state.exp_avg.decoder.final_layernorm.weight"
    one = header.state[key]
    other = msgspec.structs.replace(one, shape=(33,))
    words = re.escape(
        f"{key} has shape (33,) in float32 there, and (32,) in the run; --no-load-opt"
    )
    with pytest.raises(ConfigError, match=words):
        load(header.state | {key: other})
    (box,) = one.chunks
    damaged = bytearray((folder / box.file).read_bytes())
    inside = slice(box.start + 30, box.start + box.num_bytes - 30)
    damaged[inside] = bytes(255 - each for each in damaged[inside])
    (folder / box.file).write_bytes(damaged)
    words = f"{box.file}: no tensor at byte {box.start}, where {key} is to be: .*; --no-load-optim"
    with pytest.raises(DataError, match=words):
        load(header.state)
