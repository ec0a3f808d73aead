"""gpt-oss: sinks, the window of every second layer, biases and clamped experts are those of
transformers; weights in bfloat16 and a checkpoint come back bit for bit."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.sink_attention import SinkAttention, attend_with_sinks
from agentrl.models.registry import families
from tests.parity.alone import open_alone

Open = Callable[..., MegatronBackend]
TINY = families()["gpt-oss"].tiny
LONG = {**TINY, "max_position_embeddings": 512}
#: The published ones, but for their width, depth, vocabulary and number of heads.
PUBLISHED = {
    **LONG,
    "hidden_size": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "rope_scaling": {
        **TINY["rope_scaling"],
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
    },
}


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, **megatron: Any) -> MegatronBackend:
        for backend in opened:
            backend.close()
        cfg = RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron)
        opened.append(open_alone(cfg, directory, free_ports(1)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("sliding_window", 300),
        ("swiglu_limit", 0.3),
        ("layer_types", ["full_attention", "sliding_attention"]),
    ],
)
def test_a_number_of_its_config_json_means_what_it_means_to_transformers(
    name: str,
    other: object,
    make_hf_model: Any,
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    batch = packed([300, 40, 7], 1)
    model, directory = make_hf_model({**LONG, name: other}, tmp_path / "other")
    plain = make_hf_model(LONG, tmp_path / "plain").model
    (found,) = open_backend(directory).run("policy", [batch])
    wanted, usual = (hf_scores(each, batch)[0].detach() for each in (model, plain))
    assert float((found - wanted).abs().max()) < 1e-5
    assert float((usual - wanted).abs().max()) > 1e-3


def test_a_member_of_the_published_shape_scores_as_transformers(
    make_hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open, tmp_path: Path
) -> None:
    model, directory = make_hf_model(PUBLISHED, tmp_path / "model")
    batch = packed([300, 40, 1], 1)
    (found,) = open_backend(directory).run("policy", [batch])
    assert float((found - hf_scores(model, batch)[0].detach()).abs().max()) < 1e-5


@pytest.mark.parametrize(
    "again",
    [
        {"recompute_granularity": "selective"},
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
    ],
    ids=lambda given: str(given["recompute_granularity"]),
)
def test_a_step_that_computes_again_is_the_same_step(
    again: dict[str, Any], hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    directory, batches = hf_model("gpt-oss").directory, [packed([30, 7], 1)]
    norms, weights = [], []
    for settings in ({}, again):
        backend = open_backend(directory, **settings)
        norms.append(backend.step("policy", batches, pg_loss).grad_norm)
        weights.append({name: tensor.clone() for name, tensor in backend.hf_tensors()})
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert all(float((weights[1][n] - w).abs().max()) < 1e-5 for n, w in weights[0].items())


def with_a_key_for_each_sink(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor
) -> Tensor:
    """The same attention with the sink as one more score, whose weight is left out."""
    repeated = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeated, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    beside = sinks[:, None, None].expand(-1, len(query), 1)
    weights = torch.cat([scores, beside], -1).softmax(-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, value)


def test_attention_with_sinks_and_its_gradients_are_those_of_one_more_score() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 4, 8), (9, 2, 8), (9, 2, 8), (4,)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    query, key, value, sinks = inputs
    mask = torch.arange(4, 9)[:, None] >= torch.arange(9)
    found = attend_with_sinks(query, key, value, sinks, mask, None)
    wanted = with_a_key_for_each_sink(query, key, value, sinks, mask)
    assert float((found - wanted).abs().max()) < 1e-6
    towards = torch.randn(found.shape, generator=generator)
    ours, theirs = (torch.autograd.grad(each, inputs, towards) for each in (found, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine - other).abs().max()) < 1e-5


def test_attention_with_sinks_keeps_no_mask_until_the_backward_pass() -> None:
    one = SimpleNamespace(size=lambda: 1)
    config = SimpleNamespace(
        num_attention_heads=4,
        params_dtype=torch.float32,
        attention_dropout=0.0,
        window_size=None,
        window_attn_skip_freq=None,
    )
    attention = SinkAttention(
        config,
        SimpleNamespace(tp=one, cp=one),
        layer_number=1,
        attn_mask_type=None,
        attention_type="self",
    )
    torch.nn.init.zeros_(attention.softmax_offset)
    query, key, value = (torch.randn(600, n, 8, requires_grad=True) for n in (4, 2, 2))
    packed = SimpleNamespace(qkv_format="thd", cu_seqlens_q=torch.tensor([0, 600]))
    out = attention(query, key, value, None, packed_seq_params=packed)
    alive = [each for each in gc.get_objects() if type(each) is Tensor]
    assert [each.shape for each in alive if each.shape in {(256, 256), (256, 512), (88, 600)}] == []
    out.sum().backward()
    assert query.grad is not None


def test_weights_in_bfloat16_come_out_bit_equal_and_so_does_a_model_that_is_saved(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    source = hf_model("gpt-oss").directory
    wanted = {k: t.bfloat16() for k, t in load_file(source / "model.safetensors").items()}
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(wanted, tmp_path / "model.safetensors")
    backend = open_backend(tmp_path, bf16=True)
    exported = dict(backend.hf_tensors())
    assert exported.keys() == wanted.keys()
    assert all(torch.equal(exported[name], wanted[name]) for name in wanted)
    backend.save_hf(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == wanted.keys()
    assert all(torch.equal(saved[name], wanted[name]) for name in wanted)


def test_a_checkpoint_goes_on_where_it_was_made(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open, tmp_path: Path
) -> None:
    directory = hf_model("gpt-oss").directory
    backend = open_backend(directory)
    backend.step("policy", [packed([30, 7], 1)], pg_loss)
    (tmp_path / "state").mkdir()
    backend.save_state(tmp_path / "state")
    backend.step("policy", [packed([19], 2)], pg_loss)
    wanted = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    again = open_backend(directory)
    again.load_state(tmp_path / "state")
    again.step("policy", [packed([19], 2)], pg_loss)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.hf_tensors())
    first = load_file(directory / "model.safetensors")
    moved = {name for name in first if not torch.equal(first[name], wanted[name])}
    assert moved == first.keys()


def test_an_mxfp4_folder_is_no_source_of_weights_and_the_message_says_where_to_name_one(
    hf_model: Any, open_backend: Open, tmp_path: Path
) -> None:
    source = hf_model("gpt-oss").directory
    config = (source / "config.json").read_text().rstrip()
    quantized = config.removesuffix("}") + ', "quantization_config": {"quant_method": "mxfp4"}}'
    (tmp_path / "config.json").write_text(quantized)
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"quantization_config: mxfp4.*bfloat16 .*--load"):
        open_backend(tmp_path)
