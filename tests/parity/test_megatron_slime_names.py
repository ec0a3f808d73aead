"""Checkpoints of Qwen3-Next and Qwen3.5 as slime writes them, with delta nets in modules of its
own: a run begins with their weights, goes on with their optimizer, and they become a model."""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save as save_by_torch

from agentrl.algorithms.rows import LossFn
from agentrl.cli.main import main
from agentrl.models.registry import Model, open_model
from tests.parity.states import Open, Tensors, are_equal, config, weights, wholes
from tests.parity.test_megatron_foreign_optimizer import EVERY_LAYOUT
from tests.parity.test_megatron_foreign_optimizer import are_equal as are_nearly_equal
from tests.parity.test_megatron_foreign_optimizer import save as save_by_megatron

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

FAMILIES = ["qwen3-next", "qwen3-5"]
BEFORE = re.compile(r"(optimizer\.state\.\w+\.)?decoder\.layers\.(\d+)\.self_attention\.")
OF_NET = re.compile(r"model\.layers\.(\d+)\.(linear_attn\..+|input_layernorm\.weight)")
EARLIER = ("self_attention.linear_qkv.", "self_attention.linear_qgkv.")


def write(place: Path, tensors: Tensors, steps: int = 0) -> Path:
    """A checkpoint with those `tensors`, by torch's own writer."""
    folder = place / "iter_0000002"
    save_by_torch(dict(tensors), checkpoint_id=folder, no_dist=True)
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    kept = {"optimizer": {"param_groups": [{"step": steps}]}} if steps else {}
    torch.save({"args": Namespace(num_layers=4), "iteration": 2} | kept, folder / "common.pt")
    (place / "latest_checkpointed_iteration.txt").write_text("2")
    return place


def has_net(model: Model, layer: str) -> bool:
    net: Any = getattr(model.architecture, "delta_net", None)
    return not net.has_attention(int(layer))


def as_slime(ours: Tensors, hf: Tensors, model: Model) -> Tensors:
    """Weights of a checkpoint of `ours`: in layers with a delta net, attention's are those of the
    Hugging Face model."""
    found = {
        key: tensor
        for key, tensor in ours.items()
        if not ((at := BEFORE.match(key)) and has_net(model, at[2]))
    }
    for name, tensor in hf.items():
        if (at := OF_NET.fullmatch(name)) and has_net(model, at[1]):
            found[f"decoder.layers.{at[1]}.self_attention.{at[2]}"] = tensor
    return found


def moments_as_slime(ours: Tensors, model: Model) -> Tensors:
    """What an optimizer keeps for `ours`, in the pieces that slime's modules have."""
    found: Tensors = {}
    for key, tensor in ours.items():
        at = BEFORE.match(key)
        if at is None or not has_net(model, at[2]):
            found[key] = tensor
            continue
        named = model.family.named(key.removeprefix(at[1]))
        assert named is not None
        for hf, piece in zip(named.hf, named.split(tensor, model.architecture), strict=True):
            name = at[0] + hf.removeprefix(f"model.layers.{at[2]}.")
            rows = piece.view.reshape(piece.shape)
            found[name] = torch.cat([found[name], rows]) if name in found else rows
    return found


@pytest.fixture(scope="module")
def slimes(hf_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a checkpoint by slime's names, each once."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            place, directory = tmp_path_factory.mktemp(family), hf_model(family).directory
            assert main(["convert", str(directory), str(place / "ours")]) == 0
            hf = load_file(directory / "model.safetensors")
            ours = wholes(place / "ours" / "release")
            tensors = as_slime(ours, hf, open_model(directory, None))
            if family == "qwen3-next":
                tensors = {key.replace(*EARLIER): tensor for key, tensor in tensors.items()}
                assert any(EARLIER[1] in key for key in tensors)
            made[family] = write(place / "slimes", tensors)
        return made[family]

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_by_slimes_names_begins_a_run_and_becomes_a_model(
    family: str, slimes: Callable[[str], Path], hf_model: Any, opened: Open, tmp_path: Path
) -> None:
    directory = hf_model(family).directory
    wanted = load_file(directory / "model.safetensors")
    backend = opened({"no_load_optim": True}, family, load=str(slimes(family)))
    assert are_equal(weights(backend), wanted)
    backend.close()
    base = ["--hf-checkpoint", str(directory)]
    assert main(["convert", str(slimes(family)), str(tmp_path / "hf"), *base]) == 0
    assert are_equal(load_file(tmp_path / "hf" / "model.safetensors"), wanted)


def test_tensor_parallel_ranks_take_their_shares_of_it(
    slimes: Callable[[str], Path], hf_model: Any, run_ranks: Any, tmp_path: Path
) -> None:
    directory = hf_model("qwen3-5").directory
    layout = {"tensor_model_parallel_size": 2, "no_load_optim": True}
    cfg = config(2, layout, load=str(slimes("qwen3-5")))
    job = {
        "config": msgspec.to_builtins(cfg),
        "model_dir": str(directory),
        "target": str(tmp_path / "job"),
        "script": [("export", str(tmp_path / "weights"))],
    }
    run_ranks(tmp_path, 2, [job])
    wanted = load_file(directory / "model.safetensors")
    assert all(are_equal(load_file(tmp_path / f"weights-{rank}"), wanted) for rank in range(2))


def test_a_run_goes_on_with_its_optimizer(
    opened: Open, hf_model: Any, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    batches = [[packed([30, 7], 1)], [packed([19], 2)]]
    first = opened({}, "qwen3-5", lr_warmup_iters=0)
    first.step("policy", batches[0], pg_loss)
    save_by_megatron(tmp_path, first, EVERY_LAYOUT, {"non_homogeneous_layers": True})
    hf, model = weights(first), open_model(hf_model("qwen3-5").directory, None)
    first.step("policy", batches[1], pg_loss)
    wanted = weights(first)
    kept = read(tmp_path / "iter_0000002")
    moments = {key: each for key, each in kept.items() if key.startswith("optimizer.state.exp")}
    ours = {key: each for key, each in kept.items() if not key.startswith("optimizer.")}
    tensors = as_slime(ours, hf, model) | moments_as_slime(moments, model)
    place = write(tmp_path / "slimes", tensors, steps=1)
    again = opened({}, "qwen3-5", load=str(place), lr_warmup_iters=0)
    assert again._optimizer.completed_steps == 1
    again.step("policy", batches[1], pg_loss)
    assert are_nearly_equal(weights(again), wanted)


def read(folder: Path) -> Tensors:
    """The tensors of a checkpoint of Megatron's, and not the objects beside them."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder)
    stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    found = {
        key: torch.empty(facts.size, dtype=facts.properties.dtype)
        for key, facts in stored.items()
        if isinstance(facts, TensorStorageMetadata)
    }
    load(dict(found), storage_reader=reader, no_dist=True)
    return found
