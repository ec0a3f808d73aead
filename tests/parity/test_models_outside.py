"""The family that docs/models.md writes, a file outside the package, computes what transformers
computes, trains, saves, and is read again."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from tests.parity.alone import open_alone

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
PHI3 = {
    **{key: value for key, value in families()["llama"].tiny.items() if key != "head_dim"},
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "pad_token_id": 0,
    "sliding_window": None,
}
Open = Callable[..., MegatronBackend]


@pytest.fixture
def family(tmp_path: Path) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "phi3.py").write_text(code)
    return str(tmp_path / "phi3.py")


@pytest.fixture
def phi3(make_hf_model: Any, tmp_path: Path) -> Any:
    return make_hf_model(PHI3, tmp_path / "model")


@pytest.fixture
def open_backend(family: str, free_ports: Callable[[int], int]) -> Iterator[Open]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, model_family: str | None = family) -> MegatronBackend:
        opened.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, lr=1e-3, model_family=model_family),
                directory,
                free_ports(1),
            )
        )
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


def test_it_scores_as_transformers_and_keeps_the_weights_bit_for_bit(
    phi3: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    batch = packed([30, 7, 1], 1)
    backend = open_backend(phi3.directory)
    (found,) = backend.run("policy", [batch])
    wanted = hf_scores(phi3.model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5
    stored = load_file(phi3.directory / "model.safetensors")
    exported = dict(backend.hf_tensors())
    assert exported.keys() == stored.keys()
    assert "model.layers.1.self_attn.qkv_proj.weight" in stored
    assert all(torch.equal(exported[name], stored[name]) for name in stored)


def test_a_step_of_it_is_saved_and_goes_on_where_it_was(
    phi3: Any, packed: Any, pg_loss: LossFn, open_backend: Open, tmp_path: Path
) -> None:
    batch = packed([30, 7], 1)
    backend = open_backend(phi3.directory)
    assert not backend.step("policy", [batch], pg_loss).skipped
    (tmp_path / "state").mkdir()
    backend.save_state(tmp_path / "state")
    backend.save_hf(tmp_path / "saved")
    (trained,) = backend.run("policy", [batch])
    backend.close()
    again = open_backend(tmp_path / "saved")
    assert torch.equal(again.run("policy", [batch])[0], trained)
    again.close()
    restored = open_backend(phi3.directory)
    assert not torch.equal(restored.run("policy", [batch])[0], trained)
    restored.load_state(tmp_path / "state")
    assert torch.equal(restored.run("policy", [batch])[0], trained)


def test_without_the_flag_its_architecture_is_refused_and_the_flag_named(
    phi3: Any, open_backend: Open
) -> None:
    with pytest.raises(ConfigError, match=r"Phi3ForCausalLM is not supported.*--model-family"):
        open_backend(phi3.directory, None)


def test_a_table_that_leaves_a_tensor_out_is_refused_by_its_name(
    phi3: Any, family: str, open_backend: Open
) -> None:
    lacking = Path(family).with_name("lacking.py")
    lacking.write_text(
        Path(family).read_text().replace("(*PARTS, *FUSED)", "(*PARTS[:-1], *FUSED)")
    )
    with pytest.raises(ConfigError, match=r"family phi3 says nothing of the tensor output_layer"):
        open_backend(phi3.directory, str(lacking))
