"""Layers of multi-token prediction and eyes are not built: their tensors are kept through every
round trip, and neither scored, pushed nor trained."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn
from agentrl.cli.main import main
from agentrl.config.model import read_model
from agentrl.config.places import MANIFEST
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models import behind_the_layers
from agentrl.models.headers import check_model
from agentrl.models.registry import families, open_model
from tests.parity.alone import open_alone

Open = Callable[..., MegatronBackend]
PREFIX = "model.mtp_layers.0."


@pytest.fixture
def mimo(make_hf_model: Any, tmp_path: Path) -> Any:
    """A MiMo with a layer of multi-token prediction, in bfloat16, and Python files beside it."""
    made = make_hf_model(families()["mimo"].tiny, tmp_path / "model")
    path = made.directory / "model.safetensors"
    generator = torch.Generator().manual_seed(1)
    mtp = {
        f"{PREFIX}{name}": torch.randn(shape, generator=generator).bfloat16()
        for name, shape in {
            "input_proj.weight": (32, 64),
            "token_layernorm.weight": (32,),
            "hidden_layernorm.weight": (32,),
            "self_attn.q_proj.bias": (32,),
            "mlp.gate_proj.weight": (64, 32),
        }.items()
    }
    save_file(load_file(path) | mtp, path, metadata={"format": "pt"})
    (made.directory / "configuration_mimo.py").write_text("# of the model\n")
    return made


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens one backend at a time."""
    opened: list[MegatronBackend] = []

    def make(directory: Path, **flags: Any) -> MegatronBackend:
        for backend in opened:
            backend.close()
        opened.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, lr=1e-3, **flags), directory, free_ports(1)
            )
        )
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


def passengers(directory: Path) -> dict[str, Tensor]:
    stored = load_file(directory / "model.safetensors")
    return {name: tensor for name, tensor in stored.items() if name.startswith(PREFIX)}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def test_the_decoder_is_scored_and_pushed_without_them(
    mimo: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    batch = packed([30, 7, 1], 1)
    backend = open_backend(mimo.directory)
    (found,) = backend.run("policy", [batch])
    assert float((found - hf_scores(mimo.model, batch)[0]).abs().max()) < 1e-5
    assert not any(name.startswith(PREFIX) for name, _ in backend.hf_tensors())
    assert read_model(mimo.directory).num_parameters


def test_every_model_that_is_saved_has_them_bit_for_bit(
    mimo: Any, packed: Any, pg_loss: LossFn, open_backend: Open, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    backend = open_backend(mimo.directory)
    assert not backend.step("policy", [packed([30, 7], 1)], pg_loss).skipped
    backend.save_hf(first)
    trained = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    stored = load_file(first / "model.safetensors")
    assert stored.keys() == trained.keys() | passengers(mimo.directory).keys()
    assert len(passengers(first)) == 5
    assert are_equal(passengers(first), passengers(mimo.directory))
    assert all(torch.equal(stored[name], trained[name]) for name in trained)
    assert (first / "configuration_mimo.py").read_text() == "# of the model\n"
    open_backend(first).save_hf(again)
    assert are_equal(load_file(again / "model.safetensors"), stored)


@pytest.mark.parametrize("family", ["qwen3-5-vl", "qwen3-5-moe-vl"])
def test_what_a_model_sees_with_is_kept_while_its_text_is_trained(
    family: str,
    make_hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    model = make_hf_model(families()[family].tiny, tmp_path / "model").directory
    before = load_file(model / "model.safetensors")
    eyes = {name for name in before if name.startswith("model.visual.")}
    backend = open_backend(model)
    assert not backend.step("policy", [packed([30, 7], 1)], pg_loss).skipped
    assert {name for name, _ in backend.hf_tensors()} == before.keys() - eyes
    backend.save_hf(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert are_equal({n: saved[n] for n in eyes}, {n: before[n] for n in eyes})
    assert not torch.equal(saved["lm_head.weight"], before["lm_head.weight"])
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "saved" / name).read_text() == (model / name).read_text()
    nested = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {"text_config", "vision_config"} <= nested.keys()


@pytest.mark.parametrize("family", ["qwen3-5-moe", "qwen3-5-moe-vl"])
def test_experts_in_one_tensor_are_read_and_saved_one_by_one(
    family: str, hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    single = load_file(hf_model(family).directory / "model.safetensors")
    shutil.copytree(hf_model(family).directory, tmp_path / "model")
    save_file(stacked(single), tmp_path / "model" / "model.safetensors", {"format": "pt"})
    described = open_model(tmp_path / "model", None)
    check_model(tmp_path / "model", described, described)
    open_backend(tmp_path / "model").save_hf(tmp_path / "saved")
    assert are_equal(load_file(tmp_path / "saved" / "model.safetensors"), single)


def stacked(single: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with the experts of a layer in two tensors."""
    rest = {name: tensor for name, tensor in single.items() if ".experts." not in name}
    for head in {name.partition(".experts.")[0] for name in single if ".experts." in name}:
        one = [f"{head}.experts.{expert}." for expert in range(8)]
        gate, up, down = (
            torch.stack([single[f"{each}{part}_proj.weight"] for each in one])
            for part in ("gate", "up", "down")
        )
        rest[f"{head}.experts.gate_up_proj"] = torch.cat([gate, up], 1)
        rest[f"{head}.experts.down_proj"] = down
    return rest


def test_they_come_from_the_model_that_gave_the_first_weights(
    mimo: Any, make_hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    bare = make_hf_model(families()["mimo"].tiny, tmp_path / "bare").directory
    open_backend(bare, load=str(mimo.directory)).save_hf(tmp_path / "saved")
    assert are_equal(passengers(tmp_path / "saved"), passengers(mimo.directory))


def test_a_run_that_goes_on_takes_them_where_it_took_them_before(
    mimo: Any, make_hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    bare = make_hf_model(families()["mimo"].tiny, tmp_path / "bare").directory
    kept = tmp_path / "run" / "recovery" / "iteration_0000001"
    kept.mkdir(parents=True)
    (kept / MANIFEST).touch()
    again = {"resume": str(tmp_path / "run"), "run_dir": str(tmp_path), "run_id": "run"}
    open_backend(bare, load=str(mimo.directory), **again).save_hf(tmp_path / "saved")
    assert are_equal(passengers(tmp_path / "saved"), passengers(mimo.directory))


def test_a_conversion_does_not_put_quantized_ones_beside_weights_that_are_not(
    mimo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dist, words = tmp_path / "dist", ["convert", str(tmp_path / "dist"), str(tmp_path / "hf")]
    words += ["--hf-checkpoint", str(mimo.directory)]
    assert main(["convert", str(mimo.directory), str(dist)]) == 0
    config = mimo.directory / "config.json"
    quantized = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    config.write_text(json.dumps(quantized))
    assert main(words) == 0
    assert "quantization_config" not in (tmp_path / "hf" / "config.json").read_text()
    path, name = mimo.directory / "model.safetensors", f"{PREFIX}mlp.gate_proj.weight"
    save_file(load_file(path) | {name: torch.zeros(64, 32).to(torch.float8_e4m3fn)}, path)
    assert main([*words, "--force"]) == 2
    said = capsys.readouterr().err
    assert f"{mimo.directory} has {name} in F8_E4M3: no layer here has these tensors" in said
    assert load_file(tmp_path / "hf" / "model.safetensors")[name].dtype == torch.bfloat16


def test_what_no_rule_names_is_refused_still(mimo: Any, open_backend: Open) -> None:
    path = mimo.directory / "model.safetensors"
    save_file(load_file(path) | {"model.extra.weight": torch.zeros(2)}, path)
    with pytest.raises(ConfigError, match=r"unexpected model\.extra\.weight$"):
        open_backend(mimo.directory)


def test_layers_behind_the_decoders_are_told_by_their_number(mimo: Any) -> None:
    architecture = open_model(mimo.directory, None).architecture
    assert architecture.num_layers == 2
    assert behind_the_layers("model.layers.2.eh_proj.weight", architecture)
    assert not behind_the_layers("model.layers.1.mlp.up_proj.weight", architecture)
    assert not behind_the_layers("model.norm.weight", architecture)
