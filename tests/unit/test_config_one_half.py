"""A run of one half has nobody to share devices with, whatever --colocate says, as in slime."""

from pathlib import Path

import pytest

from agentrl.config.resolve import Resolved, read
from agentrl.config.rollouts import about_rollouts

_SLIME = "--num-rollout 2 --balance-data --prompt-data rows.jsonl --device cpu"
_ONE_ENGINE = "without --rollout-num-gpus and --colocate a run has one"


def _read(flags: str) -> Resolved:
    return read(f"{_SLIME} {flags}".split(), "train")


@pytest.mark.parametrize(
    ("flags", "engines", "said"),
    [
        ("--actor-num-gpus-per-node 4", 4, "engines have the learner's devices (4)"),
        ("--actor-num-nodes 2 --actor-num-gpus-per-node 4", 8, "the learner's devices (8)"),
        ("--rollout-num-gpus 2", 2, "engines have devices as the run says"),
    ],
)
def test_engines_that_play_alone_have_the_devices_of_the_learner(
    flags: str, engines: int, said: str
) -> None:
    found = _read(f"--debug-rollout-only --colocate {flags}")
    assert found.config.num_engines == engines
    assert not found.config.colocate
    assert list(about_rollouts(found.config)) == []
    (note,) = [each for each in found.notes if each.startswith("--colocate: not needed")]
    assert said in note


def test_a_run_of_saved_rollouts_has_no_engines_to_share_with(tmp_path: Path) -> None:
    found = _read(f"--colocate --load-debug-rollout-data {tmp_path}/it")
    assert not found.config.colocate
    assert found.config.num_engines == 0
    assert any("--colocate: not needed: --load-debug-rollout-data" in n for n in found.notes)


@pytest.mark.parametrize(
    ("flags", "engines"), [("", 1), ("--colocate", 4), ("--rollout-num-gpus 3", 3)]
)
def test_one_engine_is_said_to_be_the_default_where_it_is(flags: str, engines: int) -> None:
    found = _read(f"--actor-num-gpus-per-node 4 {flags}")
    assert found.config.num_engines == engines
    assert any(_ONE_ENGINE in note for note in found.notes) == (engines == 1)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--rollout-data-transport nixl", "not needed: rows go from the buffer to the ranks"),
        ("--ci-save-grad-norm norms.pt", "not used: no file of its own is written"),
    ],
)
def test_flags_of_slime_that_change_no_result_are_noted(flag: str, said: str) -> None:
    found = _read(flag)
    assert found.refused == []
    assert any(said in note for note in found.notes)
