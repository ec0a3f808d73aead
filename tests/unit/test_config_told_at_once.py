"""All that is wrong with a command line is told at once, each thing in one line."""

from pathlib import Path

import pytest

from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT

pytestmark = pytest.mark.slow

#: Words of a command line, and what is told of them.
WRONG = {
    "--no-such-flag 3": "unknown flag --no-such-flag",
    "--lr": "--lr needs a value",
    "--rollout-batch-size many": "--rollout-batch-size cannot be 'many'",
    "--kl-loss-type k9": "--kl-loss-type cannot be 'k9'",
    "--bf16 yes": "--bf16 takes no value; 'yes' is too much",
    "--num-layers x": "--num-layers cannot be 'x'",
    "--sglang-tp-size a": "--sglang-tp-size cannot be 'a'",
    "--router-policy nope": "--router-policy cannot be 'nope'; choose from ",
    "--num-rollout 0": "--num-rollout 0: slime scores the model then",
    "--release-train": "--release-train: this waits for ",
    "--global-batch-size 5": "cannot be shared by steps of 5",
    "--moe-layer-freq x": "--moe-layer-freq cannot be 'x': it is written as ",
    "--optimizer sgd": "--optimizer cannot be 'sgd'",
    "--turn-timeout-s 9 --episode-timeout-s 8": "--turn-timeout-s 9 is longer than",
    "--tis-clip 1 --tis-clip-low 2": "--tis-clip-low 2 is above --tis-clip 1",
    "--advantage-estimator nope": "there is no algorithm 'nope'",
    "--dynamic-sampling-filter-path nowhere:keep": "cannot import nowhere",
    "--num-attention-heads 3": "--num-attention-heads is 3 but ",
}


@pytest.mark.parametrize("flags", [["--dry-run"], []], ids=["dry-run", "start"])
def test_all_that_is_wrong_with_a_command_line_is_told_at_once(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for wrong in WRONG for word in wrong.split()]
    assert main(["--preset", DEFAULT, "--device", "cpu", *words, *flags], "train_async") == 2
    told = capsys.readouterr().err
    lines = told.splitlines()
    assert {said: len([line for line in lines if said in line]) for said in WRONG.values()} == (
        dict.fromkeys(WRONG.values(), 1)
    ), told
    assert list(tmp_path.iterdir()) == []
