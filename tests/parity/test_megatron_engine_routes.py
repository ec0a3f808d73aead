"""The engine's experts (R3): the learner scores and trains as transformers does whose routers are
told the same."""

import copy
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import Outputs
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import open_model
from agentrl.models.routes import routes_of
from tests.parity.alone import open_alone

#: Item of the column where nobody knows the experts.
UNKNOWN = 255


def opened(directory: Path, port: int, **flags: Any) -> MegatronBackend:
    return open_alone(RunConfig(actor_num_gpus_per_node=1, **flags), directory, port)


class ToldRouter(torch.nn.Module):
    """A router of transformers that takes the experts of `told_TK` where they are known."""

    def __init__(self, router: Any, told_TK: Tensor) -> None:
        super().__init__()
        self.router, self.told_TK = router, told_TK

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, free_TK = self.router(hidden)
        chosen_TK = torch.where(self.told_TK == UNKNOWN, free_TK, self.told_TK)
        scores_TK = logits.float().softmax(-1).gather(-1, chosen_TK)
        if self.router.norm_topk_prob:
            scores_TK = scores_TK / scores_TK.sum(-1, keepdim=True)
        return logits, scores_TK, chosen_TK


def with_told(model: Any, told_TLK: Tensor) -> Any:
    """A copy of a transformers model whose routers are told."""
    model = copy.deepcopy(model)
    for number, layer in enumerate(model.model.layers):
        layer.mlp.gate = ToldRouter(layer.mlp.gate, told_TLK[:, number].long())
    return model


def told(length: int, experts: int, known: float) -> Tensor:
    """Random experts for each token, layer and choice; a share of the tokens has none."""
    generator = torch.Generator().manual_seed(3)
    orders = torch.rand(length, 2, experts, generator=generator).argsort(-1)[..., :2]
    orders[torch.rand(length, generator=generator) >= known] = UNKNOWN
    return orders.to(torch.uint8)


@pytest.mark.parametrize("known", [0.0, 0.7, 1.0])
def test_log_probs_and_gradients_are_those_of_transformers_with_the_same_experts(
    known: float,
    hf_model: Any,
    packed: Any,
    hf_scores: Any,
    pg_loss: Any,
    free_ports: Callable[[int], int],
) -> None:
    model, directory = hf_model("qwen3-moe")
    routes = routes_of(open_model(directory, None).architecture)
    assert (routes.column.shape, routes.column.fill) == ((2, 2), UNKNOWN)
    batch = packed([17], 5)
    experts_TLK = told(17, model.config.num_experts, known)
    batch = replace(batch, columns={**batch.columns, routes.column.name: experts_TLK})
    taught = with_told(model, experts_TLK)
    flags = {"use_rollout_routing_replay": True, "lr": 0.05, "clip_grad": 0.0}
    with closing(opened(directory, free_ports(1), **flags)) as backend:
        (found,) = backend.run("policy", [batch])
        wanted, entropy = hf_scores(taught, batch)
        assert float((found - wanted.detach()).abs().max()) < 1e-5
        free = hf_scores(model, batch)[0].detach()
        assert (float((free - wanted.detach()).abs().max()) > 1e-3) == (known > 0)
        result = backend.step("policy", [batch], pg_loss)
    torch.autograd.backward(pg_loss(batch, Outputs(wanted, entropy))[0])
    norm = torch.nn.utils.clip_grad_norm_(taught.parameters(), 1e9)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_a_step_after_others_takes_the_same_experts_again(
    hf_model: Any, packed: Any, pg_loss: Any, free_ports: Callable[[int], int]
) -> None:
    model, directory = hf_model("qwen3-moe")
    experts_TLK = told(40, model.config.num_experts, 1.0)
    batch = packed([40], 6)
    batch = replace(batch, columns={**batch.columns, "experts": experts_TLK})
    seen: list[Tensor] = []
    with closing(
        opened(directory, free_ports(1), use_rollout_routing_replay=True, lr=0.05)
    ) as backend:
        for name, module in backend._model.named_modules():
            if name.endswith(".router"):
                module.register_forward_hook(lambda _m, _a, out: seen.append(out[1].clone()))
        for _ in range(3):
            assert not backend.step("policy", [batch], pg_loss).skipped
    wanted = [
        torch.zeros(40, model.config.num_experts).scatter(1, experts_TLK[:, layer].long(), 1.0)
        for layer in range(2)
    ]
    assert len(seen) == 6
    assert all(torch.equal(found.float(), wanted[i % 2]) for i, found in enumerate(seen))


def test_a_model_without_experts_is_refused(
    hf_model: Any, free_ports: Callable[[int], int]
) -> None:
    with pytest.raises(ConfigError, match="has no experts, which --use-rollout-routing-replay"):
        opened(hf_model("qwen3").directory, free_ports(1), use_rollout_routing_replay=True)
