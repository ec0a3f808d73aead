"""`--custom-pg-loss-reducer-function-path`: what a reducer in slime's signature makes of the losses
of tokens, against NumPy, value and gradient."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.algorithm_trial import try_algorithm
from agentrl.learner.iteration import train_lease
from tests.parity import papers
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences

HEAD = "def mine(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):\n"
#: Dr.GRPO's: a constant divisor.
CONSTANT = f"""import torch

{HEAD}    def reduce(x):
        parts = x.split(response_lengths)
        return sum((part * mask).sum() / 50 for part, mask in zip(parts, loss_masks))

    return reduce
"""
#: The mean of each trajectory, times the root of its length.
ROOT = f"""import torch

{HEAD}    def reduce(x):
        parts = zip(x.split(response_lengths), loss_masks)
        return sum((p * m).sum() / max(1, int(m.sum())) ** 0.5 for p, m in parts)

    return reduce
"""
BROKEN = {
    "the mean over what it sees": (f"{HEAD}    return lambda x: x.mean()\n", "not the same beside"),
    "a square": (f"{HEAD}    return lambda x: (x * x).sum()\n", "no weighted sum"),
    "no function": (f"{HEAD}    return 1.0\n", "a function of the losses is wanted"),
    "many numbers": (f"{HEAD}    return lambda x: x\n", "one number is wanted"),
}


def config(path: Path, text: str, **flags: Any) -> RunConfig:
    path.write_text(text)
    flags = {"custom_pg_loss_reducer_function_path": f"{path}:mine"} | flags
    return RunConfig(
        num_steps_per_rollout=2,
        max_tokens_per_gpu=160,
        max_staleness=BOUND,
        n_samples_per_prompt=4,
        **flags,
    )


def weight_of(text: str, seq: papers.Seq) -> float:
    return 1 / 50 if text == CONSTANT else 1 / max(1, seq.mask.sum()) ** 0.5


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("text", [CONSTANT, ROOT], ids=["constant", "root"])
def test_a_reducer_says_what_each_token_weighs(text: str, per_token: bool, tmp_path: Path) -> None:
    """And a step divides by its episodes, or by its sampled tokens; the entropy is as without."""
    flags = {"calculate_per_token_loss": per_token}
    file = tmp_path / "mine.py"
    cfg = config(file, text, custom_pg_loss_reducer_function_path=f"{file}:mine", **flags)
    batch, backend = Batch(1), Watched(1)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    for step in range(2):
        named = sequences(batch, backend, step)
        seqs = [seq for _, seq in named]
        papers.advantages("grpo", seqs, {})
        _, slopes = papers.loss("grpo", seqs, flags)
        episodes = sum(1 / seq.episode_len * seq.sampled.sum() for seq in seqs)
        tokens = sum(seq.sampled.sum() for seq in seqs)
        loss = 0.0
        for (name, seq), slope in zip(named, slopes, strict=True):
            usual = 1 / (tokens if per_token else episodes * seq.episode_len)
            own = weight_of(text, seq) / (tokens if per_token else episodes)
            found = backend.gradients[step].get(name, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope * own / usual, rtol=2e-4, atol=1e-7)
            value = papers.loss("grpo", [seq], {"loss_length": 1})[0]
            loss += value * own * seq.sampled.sum() / seq.episode_len
        assert backend.losses[step] == pytest.approx(loss, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_sum_of_the_losses_is_refused(name: str, tmp_path: Path) -> None:
    text, said = BROKEN[name]
    cfg = config(tmp_path / "mine.py", text)
    batch, backend = Batch(1), Watched(1)
    with pytest.raises(HookError, match=said):
        train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)


def test_a_reducer_is_tried_before_anything_starts(tmp_path: Path) -> None:
    try_algorithm(config(tmp_path / "mine.py", CONSTANT))
    with pytest.raises(ConfigError, match=r"mine\.py:1"):
        try_algorithm(config(tmp_path / "mine.py", BROKEN["a square"][0]))
    with pytest.raises(ConfigError, match="a function that can be called as `reducer"):
        load_algorithm(config(tmp_path / "mine.py", "def mine(x):\n    return x\n"))
