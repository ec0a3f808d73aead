"""Routes that a rehearsal gives to tokens: as many experts each, and as uneven as it was told."""

import re

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.learner.megatron.forced_routes import EVEN, Skew, require_skew, routes_of
from agentrl.models.registry import families


@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "skew"),
    [
        (96, 8, 2, EVEN),
        (96, 8, 2, Skew(1.5, 2)),
        (96, 8, 2, Skew(2.0, 2)),
        (1000, 64, 6, Skew(3.0, 8)),
        (1000, 128, 8, Skew(1.25, 4)),
        (7, 4, 1, Skew(1.7, 2)),
        (2000, 10, 6, Skew(1.6666, 2)),  # a rank gets at most 1.6667 times its share
    ],
)
def test_every_token_takes_as_many_experts_and_the_first_rank_gets_its_share(
    tokens: int, experts: int, topk: int, skew: Skew
) -> None:
    routes = routes_of(tokens, experts, topk, skew)
    assert (routes.sum(1) == topk).all()
    per_expert = routes.sum(0)
    first, others = per_expert.tensor_split([experts // skew.num_ranks])
    even = tokens * topk / skew.num_ranks
    # an imbalance is rounded down to a thousandth
    assert first.sum().item() == pytest.approx(even * skew.imbalance, abs=1 + even / 1000)
    for group in (first, others):
        if len(group):
            assert group.max() - group.min() <= 1


def test_even_routes_are_those_of_no_imbalance() -> None:
    assert torch.equal(routes_of(50, 8, 2), routes_of(50, 8, 2, Skew(1.0, 4)))


@pytest.mark.parametrize(
    ("family", "skew", "said"),
    [
        ("qwen3", Skew(1.5, 2), "--moe-imbalance 1.5: the model has no experts"),
        ("qwen3-moe", Skew(2.0, 1), "--moe-imbalance 2: every rank has all experts"),
        ("qwen3-moe", Skew(9.0, 2), "so a rank gets at most 2 times an even share"),
    ],
)
def test_an_imbalance_that_cannot_be_is_refused(family: str, skew: Skew, said: str) -> None:
    found = families()[family]
    architecture = found.read(dict(found.tiny))
    with pytest.raises(ConfigError, match=re.escape(said)):
        require_skew(skew, architecture)
    require_skew(Skew(1.0, skew.num_ranks), architecture)
