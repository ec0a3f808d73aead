"""A class of the user's is tried in a process of its own; each fault is told with its line."""

from pathlib import Path

import pytest

from agentrl.cli import train
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.algorithm_trial import try_algorithm

pytestmark = pytest.mark.slow

HEAD = """\
import time
import numpy as np
import msgspec
from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.rows import Credit, num_turns


class Mine(Algorithm):
"""

FAULTS = {
    "not a number": (
        "    def values(self, rewards):\n        return [float('nan')] * len(rewards)\n",
        r"Mine\.credit .*one is nan; a credit must be .* \(.*mine\.py:9\)",
    ),
    "a wrong length": (
        "    def values(self, rewards):\n        return rewards[:2]\n",
        r"2 credits for the 3 episodes of group .*\(.*mine\.py:9\)",
    ),
    "too few turns": (
        "    def credit(self, group):\n        return [Credit((r,)) for r in group.rewards]\n",
        r"gave episode .* 1 numbers, and it has a turn 1.*\(.*mine\.py:9\)",
    ),
    "an exception": (
        "    def values(self, rewards):\n        return [1 / r for r in rewards]\n",
        r"ZeroDivisionError: float division by zero \(.*mine\.py:10\)",
    ),
    "advantages of a wrong length": (
        (
            "    def advantages(self, rows, total):\n        for row in rows:\n"
            "            row.columns['advantages'] = np.zeros(2, np.float32)\n"
        ),
        r"column advantages of episode .* has shape \(2,\); .*\(.*mine\.py:9\)",
    ),
    "a mask that is none": (
        "    def mask(self, row):\n        return True\n",
        r"Mine\.mask returned bool of shape \(\) .*\(.*mine\.py:9\)",
    ),
    "a gradient at an untrained label": (
        "    def loss(self, model, batch, out):\n        return out.logprobs_T.sum(), {}\n",
        r"gradient at \d+ labels of logprobs_T that are not trained.*\(.*mine\.py:9\)",
    ),
    "a gradient at a sampled label that is too old": (
        (
            "    def loss(self, model, batch, out):\n"
            "        loss = -(out.logprobs_T * batch.columns['sampled']).sum()\n"
            "        return loss, {'loss': loss.detach()}\n"
        ),
        r"gradient at \d+ labels of logprobs_T that are not trained.*\(.*mine\.py:9\)",
    ),
    "a mask that is written to": (
        (
            "    def mask(self, row):\n        found = row.columns['mask']\n"
            "        found[:-1] = True\n        return found\n"
        ),
        r"ValueError: assignment destination is read-only \(.*mine\.py:11\)",
    ),
    "a mask that is replaced": (
        (
            "    def advantages(self, rows, total):\n        super().advantages(rows, total)\n"
            "        for row in rows:\n"
            "            row.columns['mask'] = np.ones(len(row.tokens_L), bool)\n"
        ),
        r"advantages replaced column mask of episode .*\(.*mine\.py:9\)",
    ),
    "advantages that are no numbers": (
        (
            "    def advantages(self, rows, total):\n        for row in rows:\n"
            "            row.columns['advantages'] = np.array([None] * len(row.tokens_L))\n"
        ),
        r"column advantages of episode .* is of dtype object; numbers are wanted.*mine\.py:9\)",
    ),
    "a group of equal rewards": (
        (
            "    def __init__(self, cfg, args):\n        super().__init__(cfg, args)\n"
            "        self.needs = msgspec.structs.replace(self.needs, min_group=4)\n\n"
            "    def values(self, rewards):\n"
            "        return [1 / (max(rewards) != min(rewards)) for _ in rewards]\n"
        ),
        r"ZeroDivisionError: division by zero \(.*mine\.py:14\)",
    ),
    "a loss that depends on the order": (
        (
            "    seen = 0\n    def loss(self, model, batch, out):\n        self.seen += 1\n"
            "        loss, found = super().loss(model, batch, out)\n"
            "        return self.seen * loss, found\n"
        ),
        r"must not depend on their order \(.*mine\.py:10\)",
    ),
    "a loss that is not a number": (
        (
            "    def loss(self, model, batch, out):\n"
            "        return out.logprobs_T[batch.columns['mask']].sum() * float('nan'), {}\n"
        ),
        r"the loss is tensor\(nan.*; a finite scalar is wanted \(.*mine\.py:9\)",
    ),
    "credit that changes": (
        (
            "    calls = 0\n    def values(self, rewards):\n        self.calls += 1\n"
            "        return [r + self.calls for r in rewards]\n"
        ),
        r"is not the same twice.*\(.*mine\.py:10\)",
    ),
    "a state that does not come back": (
        (
            "    count = 0\n    def begin(self, header):\n        self.count += 1\n"
            "    def state(self):\n        return msgspec.msgpack.encode(self.count)\n"
        ),
        r"`restore\(state\(\)\)` gives another state \(.*mine\.py:12\)",
    ),
    "an end of the process": (
        "    def values(self, rewards):\n        import os\n        os._exit(3)\n",
        "ended the process",
    ),
    "no such argument": (
        (
            "    def __init__(self, cfg, args):\n        super().__init__(cfg, args)\n"
            "        self.x = args.x\n"
        ),
        r"AttributeError: .*\(.*mine\.py:11\)",
    ),
}

GOOD = """\
    class Args(msgspec.Struct):
        decay: float = 0.9

    def __init__(self, cfg, args):
        super().__init__(cfg, args)
        self.baseline = 0.0

    def begin(self, header):
        rewards = [reward for group in header.groups for reward in group.rewards]
        mean = sum(rewards) / len(rewards)
        self.baseline = self.args.decay * self.baseline + (1 - self.args.decay) * mean

    def credit(self, group):
        episodes = zip(group.rewards, num_turns(group), strict=True)
        return [Credit((reward - self.baseline,) * turns) for reward, turns in episodes]

    def state(self):
        return msgspec.msgpack.encode(self.baseline)

    def restore(self, data):
        self.baseline = msgspec.msgpack.decode(data)
"""


def config(folder: Path, body: str) -> RunConfig:
    (folder / "mine.py").write_text(HEAD + body)
    return RunConfig(advantage_estimator=str(folder / "mine.py"), n_samples_per_prompt=4)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_with_its_line(fault: str, tmp_path: Path) -> None:
    body, said = FAULTS[fault]
    with pytest.raises(ConfigError, match=f"--advantage-estimator .*mine.py: .*{said}"):
        try_algorithm(config(tmp_path, body))


def test_a_hang_is_told_with_its_line(tmp_path: Path) -> None:
    body = "    def values(self, rewards):\n        time.sleep(10_000)\n"
    with pytest.raises(ConfigError, match=r"values \(.*mine\.py:10\) did not come to an end"):
        try_algorithm(config(tmp_path, body), limit_s=3.0)


def test_a_sound_one_of_turns_and_with_a_state_passes(tmp_path: Path) -> None:
    try_algorithm(config(tmp_path, GOOD))


def test_what_lies_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('this is not the library')\n")
    monkeypatch.chdir(tmp_path)
    try_algorithm(config(tmp_path, "    def values(self, rewards):\n        return rewards\n"))


def test_a_verdict_is_heard_though_a_process_of_the_users_lives_on(tmp_path: Path) -> None:
    body = "    import os\n    if os.fork() == 0:\n        time.sleep(10_000)\n"
    try_algorithm(config(tmp_path, body))


LOSS_FAULTS = {
    "not a number": (
        "return (logprobs_T * float('nan')).sum(), {'loss': logprobs_T.detach().sum()}",
        r"the loss is tensor\(nan.*a finite scalar is wanted \(.*loss\.py:1\)",
    ),
    "an exception": (
        "return micro_batch.columns['no_such'], {}",
        r"KeyError: 'no_such' \(.*loss\.py:2\)",
    ),
    "no gradient": (
        "return logprobs_T.detach().sum(), {'loss': logprobs_T.detach().sum()}",
        r"the loss has no gradient \(.*loss\.py:1\)",
    ),
    "no loss": ("return None, {}", r"the loss is None; a finite scalar is wanted"),
    "measures that are none": (
        "return logprobs_T.sum(), 3",
        r"the loss reports 3; measures by name are wanted \(.*loss\.py:1\)",
    ),
}


def with_loss(folder: Path, body: str) -> RunConfig:
    path = folder / "loss.py"
    path.write_text(f"def loss(micro_batch, logprobs_T, entropy_T):\n    {body}\n")
    return RunConfig(
        loss_type="custom_loss", custom_loss_function_path=str(path), n_samples_per_prompt=4
    )


@pytest.mark.parametrize("fault", LOSS_FAULTS)
def test_a_fault_of_a_custom_loss_is_told_with_its_line(fault: str, tmp_path: Path) -> None:
    body, said = LOSS_FAULTS[fault]
    with pytest.raises(ConfigError, match=f"--custom-loss-function-path .*loss.py: .*{said}"):
        try_algorithm(with_loss(tmp_path, body))


def test_a_sound_custom_loss_passes(tmp_path: Path) -> None:
    columns = "columns = micro_batch.columns; "
    body = columns + "loss = -(logprobs_T * columns['weights'])[columns['mask']].sum(); "
    try_algorithm(with_loss(tmp_path, body + "return loss, {'loss': loss.detach()}"))


def test_the_command_line_tries_it_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = config(tmp_path, FAULTS["a wrong length"][0])
    argv = ["--advantage-estimator", str(cfg.advantage_estimator)]
    assert train.main(argv, "train_async") == 2
    assert "mine.py:9)" in capsys.readouterr().err


OWN_LOSS = """\
    def loss(self, model, batch, out):
        columns = batch.columns
        loss = -(out.logprobs_T * columns['advantages'] * columns['weights'])[columns['mask']].sum()
        return loss, {'loss': loss.detach()}
"""
ON_OURS = """\
    def loss(self, model, batch, out):
        return super().loss(model, batch, out)
"""
SAID = {
    "eps_clip": "--eps-clip",
    "entropy_coef": "--entropy-coef",
    "kl_loss_coef": "--kl-loss-coef",
    "calculate_per_token_loss": "--calculate-per-token-loss",
}


def test_a_flag_that_nothing_of_the_users_algorithm_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads --eps-clip, --entropy-coef; leave out"):
        try_algorithm(config(tmp_path, OWN_LOSS), SAID)
    switch = {"disable_grpo_std_normalization": "--disable-grpo-std-normalization"}
    try_algorithm(config(tmp_path, ON_OURS), SAID)
    with pytest.raises(ConfigError, match="reads --disable-grpo-std-normalization; leave out"):
        try_algorithm(config(tmp_path, ON_OURS), SAID | switch)
    cfg = config(tmp_path, "")
    file = "from agentrl.algorithms.grpo import Grpo\n\n\nclass Mine(Grpo):\n    pass\n"
    Path(cfg.advantage_estimator).write_text(file)
    try_algorithm(cfg, SAID | switch)


def test_the_command_line_refuses_a_flag_that_the_users_loss_does_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = config(tmp_path, OWN_LOSS)
    argv = ["--dry-run", "--advantage-estimator", str(cfg.advantage_estimator), "--tis-clip", "3"]
    assert train.main(argv, "train_async") == 2
    assert "nothing of it reads --tis-clip; leave out" in capsys.readouterr().err
