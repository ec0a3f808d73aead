"""What keeps experts equally busy: the auxiliary loss and the correction bias that moves."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, one_hot

from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.config.run import RunConfig
from tests.parity.alone import open_alone

BIAS = "model.layers.{}.mlp.gate.e_score_correction_bias"


def config(ranks: int, **megatron: Any) -> RunConfig:
    return RunConfig(actor_num_gpus_per_node=ranks, lr=1e-3, clip_grad=0.0, megatron=megatron)


@pytest.fixture
def opened(free_ports: Callable[[int], int]) -> Callable[..., Any]:
    """A backend of one rank that `with` closes."""

    def make(directory: Path, **megatron: Any) -> Any:
        return closing(open_alone(config(1, **megatron), directory, free_ports(1)))

    return make


def no_loss(_: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    return (out.logprobs_T * 0.0).sum(), {}


def router_logits(model: Any, batch: MicroBatch) -> list[Tensor]:
    """[tokens, experts] of each layer of a transformers model, one sequence at a time."""
    seen: dict[str, list[Tensor]] = {}

    def look(name: str) -> Callable[..., None]:
        def note(module: Any, args: Any, _: Any) -> None:
            hidden_TH = args[0].reshape(-1, args[0].shape[-1])
            seen.setdefault(name, []).append(linear(hidden_TH, module.weight))

        return note

    gates = [(n, m) for n, m in model.named_modules() if n.endswith(".gate")]
    hooks = [module.register_forward_hook(look(name)) for name, module in gates]
    for tokens_T in torch.split(batch.tokens_T, batch.cu_seqlens.diff().tolist()):
        model(tokens_T[None])
    for hook in hooks:
        hook.remove()
    return [torch.cat(each) for each in seen.values()]


def test_the_auxiliary_loss_has_the_gradient_that_transformers_gives_it(
    hf_model: Any, packed: Any, opened: Any
) -> None:
    """https://arxiv.org/abs/2101.03961 (equation 4), of each micro-batch, by its tokens."""
    model, directory = hf_model("qwen3-moe")
    batches = [packed([30, 7], 1), packed([19], 2)]
    num_tokens = sum(len(batch.tokens_T) for batch in batches)
    model.zero_grad()
    total = torch.zeros(())
    for batch in batches:
        for logits_TE in router_logits(model, batch):
            probs_TE = logits_TE.softmax(-1)
            share_E = one_hot(probs_TE.topk(2).indices, 8).sum((0, 1)) / (2 * len(probs_TE))
            auxiliary = 8 * (share_E * probs_TE.mean(0)).sum()
            total = total + 0.1 * auxiliary * len(probs_TE) / num_tokens
    torch.autograd.backward(total)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    wanted = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    model.zero_grad()
    said = {"moe_router_load_balancing_type": "aux_loss", "moe_router_dtype": "fp32"}
    with opened(directory, moe_aux_loss_coeff=0.1, **said) as backend:
        found = backend.step("policy", batches, no_loss)
    assert found.grad_norm == pytest.approx(wanted, rel=1e-5)


LAYOUTS: dict[str, dict[str, Any]] = {
    "experts": {"expert_model_parallel_size": 2},
    "tensors": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "contexts": {"context_parallel_size": 2},
    "stages": {"pipeline_model_parallel_size": 2},
}
BALANCED = {"moe_aux_loss_coeff": 100.0, "moe_router_bias_update_rate": 0.01}


def test_many_ranks_balance_experts_as_one_does(
    make_hf_model: Any, sigmoid: Any, opened: Any, play_job: Any, run_ranks: Any, tmp_path: Path
) -> None:
    """The auxiliary loss, which is nearly all of the gradient here, and the correction bias: by
    the tokens of the run alone, of which two ranks have unequal numbers of micro-batches and
    sequences that they cannot share equally."""
    plain = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}
    _, directory = make_hf_model(sigmoid | plain, tmp_path / "model")
    jobs = [
        {
            "config": msgspec.to_builtins(config(2, **BALANCED, **layout)),
            "model_dir": str(directory),
            "target": str(tmp_path / name),
        }
        for name, layout in LAYOUTS.items()
    ]
    with opened(directory, **BALANCED) as backend:
        play_job(backend, tmp_path / "one")
    run_ranks(tmp_path, 2, jobs)

    def norm(name: str) -> float:
        return float(json.loads((tmp_path / f"{name}-0.json").read_text())["results"][0][1])

    def biases(name: str) -> dict[str, Tensor]:
        weights = load_file(tmp_path / f"{name}-0.weights")
        return {key: each for key, each in weights.items() if key.endswith(BIAS[-23:])}

    norms = {name: norm(name) for name in LAYOUTS}
    assert norms == pytest.approx(dict.fromkeys(LAYOUTS, norm("one")), rel=1e-5)
    wanted = biases("one")
    assert len(wanted) == 1
    assert all(each.abs().max() > 0 for each in wanted.values())
    for name in LAYOUTS:
        assert all(torch.equal(each, wanted[key]) for key, each in biases(name).items()), name


def test_a_correction_bias_moves_towards_experts_with_fewer_tokens(
    make_hf_model: Any, sigmoid: Any, packed: Any, pg_loss: Any, opened: Any, tmp_path: Path
) -> None:
    """https://arxiv.org/abs/2408.15664, algorithm 1; in a step that is skipped it stays."""
    plain = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}
    model, directory = make_hf_model(sigmoid | plain, tmp_path / "model")
    batches = [packed([30, 7], 1), packed([19], 2)]
    before = model.state_dict()[BIAS.format(1)]
    gate = model.model.layers[1].mlp.gate
    tokens_E = torch.zeros(8)
    for batch in batches:
        for logits_TE in router_logits(model, batch):
            scores_TE = logits_TE.sigmoid() + gate.e_score_correction_bias
            tokens_E += one_hot(scores_TE.topk(3).indices, 8).sum((0, 1))
    wanted = before + 0.01 * torch.sign(tokens_E.mean() - tokens_E)

    def torn(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = pg_loss(batch, out)
        return value * torch.nan, metrics

    with opened(directory, moe_router_bias_update_rate=0.01) as backend:
        assert backend.step("policy", batches, torn).skipped
        assert torch.equal(dict(backend.hf_tensors())[BIAS.format(1)], before)
        assert not backend.step("policy", batches, pg_loss).skipped
        assert torch.equal(dict(backend.hf_tensors())[BIAS.format(1)], wanted)
    with opened(directory) as backend:
        assert not backend.step("policy", batches, pg_loss).skipped
        assert torch.equal(dict(backend.hf_tensors())[BIAS.format(1)], before)
    megatrons = before + 0.001 * torch.sign(tokens_E.mean() - tokens_E)
    with opened(directory, moe_router_enable_expert_bias=True) as backend:
        assert not backend.step("policy", batches, pg_loss).skipped
        assert torch.equal(dict(backend.hf_tensors())[BIAS.format(1)], megatrons)
