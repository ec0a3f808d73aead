"""R3 on the real stack: engines tell the experts of each token, through the router, and the learner
sends tokens to them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.view.choice import Choice
from agentrl.view.episodes import read_episodes
from benchmarks.families import iterate

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


@torch.no_grad()
def test_a_trajectory_has_the_experts_that_its_model_chooses(tmp_path: Path) -> None:
    assert iterate("qwen3-moe", tmp_path, "--use-rollout-routing-replay") < 1e-4
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    episodes = list(read_episodes(tmp_path / "one", Choice(worst=8)))
    assert len(episodes) == 8
    for episode in episodes:
        for trajectory in episode.trajectories:
            assert trajectory.columns is not None
            found = trajectory.columns["experts"]
            ids = torch.from_numpy(trajectory.columns["tokens"].astype(np.int64))
            logits = model(ids[None], output_router_logits=True).router_logits
            chosen = torch.stack([layer.topk(2).indices for layer in logits], 1).sort(-1).values
            assert (found[0] == 255).all(), "nothing was fed before the first token"
            told = torch.from_numpy(found[1:].astype(np.int64)).sort(-1).values
            assert torch.equal(told, chosen[:-1])
