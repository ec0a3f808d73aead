"""Latent attention in the shapes that are published: each tiny member scores and learns as
transformers does, and two tensor-parallel ranks learn what one process does."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.algorithms.rows import LossFn, Outputs
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from tests.parity.alone import open_alone

TINY = families()["deepseek-v3"].tiny
YARN = {key: value for key, value in TINY["rope_scaling"].items() if not key.startswith("mscale")}
#: Member -> what its config.json says beside `tiny`.
MEMBERS: dict[str, dict[str, Any]] = {
    "deepseek": {},
    "deepseek-v2": {"rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    "two-magnitudes": {"rope_scaling": YARN | {"mscale": 1.2, "mscale_all_dim": 0.7}},
    "no-magnitude": {"rope_scaling": YARN},
    "moonlight": {"q_lora_rank": None, "rope_scaling": None},
    "kimi": {"rope_scaling": TINY["rope_scaling"] | {"factor": 32.0, "beta_fast": 1.0}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "cp2": {"context_parallel_size": 2},
}


def config(ranks: int, **megatron: Any) -> RunConfig:
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        rollout_temperature=0.8,
        lr=1e-3,
        weight_decay=0.1,
        clip_grad=0.5,
        megatron=megatron,
    )


@pytest.fixture(scope="module")
def member(make_hf_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The tiny member of a name, made once."""
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in made:
            made[name] = make_hf_model({**TINY, **MEMBERS[name]}, tmp_path_factory.mktemp(name))
        return made[name]

    return make


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Callable[..., MegatronBackend]]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, cfg: RunConfig) -> MegatronBackend:
        opened.append(open_alone(cfg, directory, free_ports(1)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_scores_and_learns_as_transformers_does(
    name: str, member: Any, packed: Any, hf_scores: Any, pg_loss: LossFn, open_backend: Any
) -> None:
    model, directory = member(name)
    batch = packed([60, 7, 19, 1], 1)
    backend = open_backend(directory, RunConfig(actor_num_gpus_per_node=1, lr=1e-3))
    (found,) = backend.run("policy", [batch])
    model = copy.deepcopy(model)
    logprobs, entropies = hf_scores(model, batch)
    assert float((found - logprobs.detach()).abs().max()) < 1e-5
    stored, exported = load_file(directory / "model.safetensors"), dict(backend.hf_tensors())
    assert exported.keys() == stored.keys()
    assert all(torch.equal(exported[key], stored[key]) for key in stored)
    torch.autograd.backward(pg_loss(batch, Outputs(logprobs, entropies))[0])
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    result = backend.step("policy", [batch], pg_loss)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)


@pytest.fixture(scope="module")
def played(
    member: Any, run_ranks: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """What two ranks make of a member in a layout."""
    home = tmp_path_factory.mktemp("ranks")

    def find(name: str, layout: str) -> Path:
        if not list(home.glob("*-saved")):
            jobs = [
                {
                    "config": msgspec.to_builtins(config(2, **megatron)),
                    "model_dir": str(member(each).directory),
                    "target": str(home / f"{each}-{key}"),
                }
                for each in ("deepseek", "moonlight")
                for key, megatron in LAYOUTS.items()
            ]
            run_ranks(home, 2, jobs)
        return home / f"{name}-{layout}"

    return find


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["deepseek", "moonlight"])
def test_two_ranks_take_the_steps_of_one_process(
    name: str,
    layout: str,
    member: Any,
    played: Any,
    play_job: Any,
    open_backend: Any,
    tmp_path: Path,
) -> None:
    """Projections cut up by columns give the same loss and another gradient. Adam makes as much of
    a small difference between small gradients as of a large one, so weights show it less well."""
    with closing(open_backend(member(name).directory, config(1))) as backend:
        play_job(backend, tmp_path / "one")
    wanted = load_file(tmp_path / "one-0.weights")
    norms = [one[1] for one in json.loads((tmp_path / "one-0.json").read_text())["results"]]
    for rank in range(2):
        weights = load_file(f"{played(name, layout)}-{rank}.weights")
        found = json.loads(Path(f"{played(name, layout)}-{rank}.json").read_text())["results"]
        assert [one[1] for one in found] == pytest.approx(norms, rel=1e-5)
        assert weights.keys() == wanted.keys()
        for key in wanted:
            assert float((weights[key] - wanted[key]).abs().max()) < 1e-4, key


def test_layers_that_predict_further_tokens_are_saved_as_they_were_and_not_pushed(
    member: Any, open_backend: Any, tmp_path: Path
) -> None:
    stored = load_file(member("deepseek").directory / "model.safetensors")
    published = shutil.copytree(member("deepseek").directory, tmp_path / "published")
    more = {
        "model.layers.2.eh_proj.weight": torch.ones(4),
        "model.layers.2.enorm.weight": torch.ones(4),
    }
    save_file(stored | more, published / "model.safetensors")
    told = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps(told | {"num_nextn_predict_layers": 1}))
    backend = open_backend(published, RunConfig(actor_num_gpus_per_node=1))
    assert dict(backend.hf_tensors()).keys() == stored.keys()
    backend.save_hf(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert saved["num_nextn_predict_layers"] == 1
    kept = load_file(tmp_path / "saved" / "model.safetensors")
    assert kept.keys() == stored.keys() | more.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in more.items())


def test_quantized_weights_are_refused_unless_the_learner_is_told_of_others(
    member: Any, open_backend: Any, tmp_path: Path
) -> None:
    directory = member("deepseek").directory
    quantized = shutil.copytree(directory, tmp_path / "quantized")
    (quantized / "model.safetensors").unlink()
    told = json.loads((quantized / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (quantized / "config.json").write_text(json.dumps(told))
    with pytest.raises(
        ConfigError, match=r"quantized weights \(quantization_config: fp8\).*--load"
    ):
        open_backend(quantized, RunConfig(actor_num_gpus_per_node=1))
    backend = open_backend(quantized, RunConfig(actor_num_gpus_per_node=1, load=str(directory)))
    backend.save_hf(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    assert dict(backend.hf_tensors()).keys() == stored.keys()
