"""One process: weights come out of megatron-core's model under the names of transformers, and go in
again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.algorithms.rows import LossFn
from agentrl.errors import ConfigError
from agentrl.models.registry import families
from tests.parity.one_process import Open, hf_weights, open_backend, trained
from tests.parity.states import apart
from tests.slices import of_the_day

__all__ = ["open_backend"]


@pytest.mark.parametrize("name", of_the_day([*families(), "qwen3-tied"], 4))
def test_weights_come_out_bit_equal_under_their_own_names(
    name: str, hf_model: Any, open_backend: Open
) -> None:
    _, directory = hf_model(name)
    exported = dict(open_backend(directory).hf_tensors())
    wanted = trained(directory, load_file(directory / "model.safetensors"))
    assert exported.keys() == wanted.keys()
    assert all(torch.equal(exported[name], wanted[name]) for name in wanted)


def test_a_saved_model_loads_in_transformers_and_again_here(
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    import transformers

    _, directory = hf_model("qwen3-tied")
    batch = packed([30, 7], 1)
    backend = open_backend(directory)
    backend.step("policy", [batch], pg_loss)
    target = tmp_path / "out" / "model"
    backend.save_hf(target)
    backend.save_hf(target)
    trained = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    (logprobs,) = backend.run("policy", [batch])
    backend.close()

    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    assert apart(hf_weights(model), trained) == 0.0
    assert (target / "generation_config.json").exists()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert torch.equal(open_backend(target).run("policy", [batch])[0], logprobs)


def test_a_checkpoint_that_does_not_fit_is_refused_by_the_names_of_its_tensors(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    _, directory = hf_model("qwen3")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.9.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"missing model\.layers\.0.*unexpected model\.layers\.9"):
        open_backend(tmp_path)


def test_a_sharded_checkpoint_is_read_like_a_single_file(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    model, _ = hf_model("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert apart(dict(open_backend(tmp_path).hf_tensors()), hf_weights(model)) == 0.0
