"""Checkpoints in which the norms of latent attention have the names of local layers, as earlier
ones of ours: the next step is the one that would have followed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.algorithms.rows import LossFn
from agentrl.cli.main import main
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.megatron import MegatronBackend
from tests.parity.states import Open, are_equal, weights, wholes
from tests.parity.test_megatron_foreign_optimizer import EVERY_LAYOUT, save

pytestmark = pytest.mark.timeout(900)

MODEL = "deepseek-v3"
EARLIER = {
    "decoder.layers.0.pre_mlp_layernorm.weight",
    "decoder.layers.1.self_attention.q_layernorm.weight",
    "optimizer.state.exp_avg.decoder.layers.0.self_attention.kv_layernorm.weight",
}


@pytest.fixture
def earlier(opened: Open) -> Callable[..., MegatronBackend]:
    """Opens a backend that writes what an earlier one did."""

    def make(**flags: Any) -> MegatronBackend:
        backend = opened({}, MODEL, **flags)
        model: Any = backend._trained["policy"].module[0]
        for layer in model.decoder.layers:
            layer.submodules_config.sharded_state_dict_keys_map = {}
        return backend

    return make


def test_a_state_under_earlier_names_goes_on(
    earlier: Any, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = earlier()
    follow_script(backend, [("step", "0"), ("save", str(tmp_path / "old")), ("step", "1")])
    assert wholes(tmp_path / "old").keys() >= EARLIER
    wanted = weights(backend)
    again = opened({}, MODEL)
    follow_script(again, [("load", str(tmp_path / "old")), ("save", str(tmp_path / "new"))])
    assert not wholes(tmp_path / "new").keys() & EARLIER
    follow_script(again, [("step", "1")])
    assert are_equal(weights(again), wanted)


def test_its_weights_alone_begin_a_run_and_become_a_model(
    earlier: Any, opened: Open, follow_script: Any, hf_model: Any, tmp_path: Path
) -> None:
    kept, out = tmp_path / "kept", tmp_path / "hf"
    backend = earlier()
    follow_script(backend, [("step", "0")])
    writer = CheckpointWriter(kept, backend, run_id="first")
    writer.begin(None)
    writer.save(1, version=1)
    wanted = weights(backend)
    again = opened({"no_load_optim": True}, MODEL, load=str(kept))
    assert are_equal(weights(again), wanted)
    again.close()
    base = ["--hf-checkpoint", str(hf_model(MODEL).directory)]
    assert main(["convert", str(kept), str(out), *base]) == 0
    assert are_equal(load_file(out / "model.safetensors"), wanted)


def test_a_run_goes_on_with_megatrons_optimizer_under_those_names(
    earlier: Any, opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    batches = [[packed([30, 7], 1)], [packed([19], 2)]]
    first = earlier(lr_warmup_iters=0)
    first.step("policy", batches[0], pg_loss)
    save(tmp_path, first, EVERY_LAYOUT, {"non_homogeneous_layers": True})
    first.step("policy", batches[1], pg_loss)
    wanted = weights(first)
    again = opened({}, MODEL, load=str(tmp_path), lr_warmup_iters=0)
    assert again._optimizer.completed_steps == 1
    again.step("policy", batches[1], pg_loss)
    found = weights(again)
    assert all(torch.allclose(found[name], wanted[name], atol=2**-25) for name in wanted)
