"""A correction of the user's: what it may return, what it is told of, and what is told with it."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.slime_hooks import Args
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.algorithm_trial import try_algorithm
from agentrl.learner.iteration import train_lease
from tests.parity.golden import Batch, TableBackend, lineage

pytestmark = pytest.mark.slow

OURS = "import torch\ndef weigh(trained):\n"
SLIMES = "import torch\ndef weigh(args, *, pg_loss, loss_masks, **kwargs):\n"
FAULTS = {
    "nothing": (OURS, "pass", r"the weights are a NoneType; a tensor of shape \(\d+,\) is wanted"),
    "a scalar": (OURS, "return trained.mu_K.mean()", r"a Tensor of shape \(\); a tensor of shape"),
    "one too few": (OURS, "return trained.mu_K[1:].exp()", r"a Tensor of shape \(\d+,\); a tensor"),
    "not a number": (OURS, "return trained.mu_K * float('nan')", r"\d+ of the weights are not fin"),
    "below 0": (OURS, "return trained.mu_K", r"a weight is -\d+\.\d+; 0 or more is wanted"),
    "no three": (
        SLIMES,
        "return pg_loss",
        r"it returned a Tensor; \(pg_loss, loss_masks, metrics\)",
    ),
    "slime's, not a number": (
        SLIMES,
        "return pg_loss * float('nan'), loss_masks, {}",
        r"\d+ of the weights are not finite",
    ),
    "a mean of the loss": (
        SLIMES,
        "return pg_loss.mean(), loss_masks, {}",
        r"its pg_loss is a Tensor of shape \(\); a tensor of shape \(\d+,\)",
    ),
    "a loss of its own": (
        SLIMES,
        "return pg_loss + 1, loss_masks, {}",
        "its pg_loss is not the one that it was given, times a weight",
    ),
    "a mask for all": (
        SLIMES,
        "return pg_loss, torch.cat(loss_masks), {}",
        r"its loss_masks are no list of tensors of the lengths \[\d+",
    ),
    "no masks": (SLIMES, "return pg_loss, None, {}", "its loss_masks are no list of tensors of"),
    "a mask of what was observed": (
        SLIMES,
        "return pg_loss, [torch.ones_like(mask) for mask in loss_masks], {}",
        r"its loss_masks bring in \d+ tokens whose mask was 0",
    ),
    "metrics that are none": (
        SLIMES,
        "return pg_loss, loss_masks, 3",
        "its metrics are a int; a dict",
    ),
    "a metric of a wrong length": (
        SLIMES,
        "return pg_loss, loss_masks, {'far': pg_loss[1:]}",
        r"its metric far has the shape \(\d+,\); a number is wanted",
    ),
}


def config(folder: Path, head: str, body: str, **flags: Any) -> RunConfig:
    (folder / "mine.py").write_text(f"{head}    {body}\n")
    return RunConfig(
        custom_tis_function_path=str(folder / "mine.py"), n_samples_per_prompt=4, **flags
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_weight_is_told_with_the_line_of_the_function(
    fault: str, tmp_path: Path
) -> None:
    head, body, said = FAULTS[fault]
    algorithm = load_algorithm(config(tmp_path, head, body))
    batch = Batch(1)
    with pytest.raises(HookError, match=rf"{said}.*weigh \(.*mine\.py:2\)"):
        train_lease(batch.header, algorithm, TableBackend(1), lineage(), batch.fetch)


@pytest.mark.parametrize("fault", ["not a number", "a loss of its own"])
def test_it_is_tried_before_anything_starts(fault: str, tmp_path: Path) -> None:
    head, body, said = FAULTS[fault]
    flag = r"--custom-tis-function-path .*mine\.py: "
    with pytest.raises(ConfigError, match=rf"{flag}.*{said}.*mine\.py:2\)$"):
        try_algorithm(config(tmp_path, head, body))


def test_a_hang_of_it_is_ended_and_told_with_its_line(tmp_path: Path) -> None:
    cfg = config(tmp_path, "import time\ndef weigh(trained):\n", "time.sleep(10_000)")
    with pytest.raises(ConfigError, match=r"weigh \(.*mine\.py:3\) did not come to an end"):
        try_algorithm(cfg, limit_s=3.0)


def test_a_built_in_correction_that_it_does_not_read_is_told(tmp_path: Path) -> None:
    said = {name: f"--{name.replace('_', '-')}" for name in ("tis_mode", "tis_clip", "eps_clip")}
    body = "return pg_loss * min(1.0, args.tis_clip), loss_masks, {}"
    with pytest.raises(ConfigError, match="nothing of it reads --tis-mode; leave out"):
        try_algorithm(config(tmp_path, SLIMES, body, tis_mode="mask", tis_clip=5.0), said)


@pytest.mark.parametrize(
    "head", ["def f(trained, bound):", "def f(args, pg_loss):", "def f(args, *, loss):"]
)
def test_another_signature_is_refused_with_the_one_to_write(head: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{head}\n    return 1\n")
    flag = f"--custom-tis-function-path {tmp_path}/mine.py:f"
    with pytest.raises(ConfigError, match=rf"{flag}: .*`weigh\(trained\)`; write `def weigh"):
        load_algorithm(RunConfig(custom_tis_function_path=f"{tmp_path}/mine.py:f"))


@pytest.mark.parametrize(
    "beside", [["--no-use-tis"], ["--use-rollout-logprobs"], ["--loss-type", "sft_loss"]]
)
def test_it_is_refused_where_nothing_is_weighed(beside: list[str]) -> None:
    with pytest.raises(ConfigError, match="--custom-tis-function-path"):
        parse(["--custom-tis-function-path", "mine:weigh", *beside], "train_async")


def test_args_are_the_flags_of_the_run_by_slimes_names() -> None:
    args = Args(RunConfig(tis_clip=3.0, disable_rewards_normalization=True))
    assert (args.tis_clip, args.use_tis) == (3.0, True)
    assert (args.rewards_normalization, args.grpo_std_normalization) == (False, True)
    assert getattr(args, "tis_upper_bound", 5.0) == 5.0
    with pytest.raises(AttributeError, match=r"args has no 'tis_upper_bound': .*into your"):
        _ = args.tis_upper_bound
