"""Files of what a rank trains on: what is written, who reads it, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from agentrl.cli.main import main
from agentrl.config.rollouts import about_rollouts
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.train_data import read_train_data
from agentrl.rollout_file import read_rollouts
from tests.integration.learner_world import World, learn


def test_what_an_iteration_trains_on_is_saved_and_read_again(tmp_path: Path) -> None:
    learn(World([2, 3]), save_debug_train_data=f"{tmp_path}/{{rollout_id}}_{{rank}}.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1_0.npz", "2_0.npz"]
    rows = [*read_train_data(tmp_path / "2_0.npz")]
    assert len({row.episode for row, _ in rows}) == len(rows) > 0
    for row, columns in rows:
        assert {"tokens", "mask", "advantages", "mu", "weights"} <= columns.keys()
        assert {len(each) for each in columns.values()} == {row.num_tokens}
        assert columns["mask"].any()
        assert np.allclose(columns["advantages"], row.credit)


def test_each_rank_saves_its_own(tmp_path: Path) -> None:
    place = f"{tmp_path}/{{rank}}/{{rollout_id}}"
    learn(World([4]), num_ranks=2, save_debug_train_data=place)
    found = [[row.episode for row, _ in read_train_data(tmp_path / rank / "1")] for rank in "01"]
    assert all(found)
    assert not set(found[0]) & set(found[1])


def test_details_hold_what_was_played_and_what_is_trained(tmp_path: Path) -> None:
    learn(World([2]), dump_details=str(tmp_path))
    played = read_rollouts(tmp_path / "rollout_data" / "1.rollouts")
    rewards = {
        str(row.episode): row.meta.reward
        for group in played.lease.groups
        for row in group.trajectories
    }
    rows = [row for row, _ in read_train_data(tmp_path / "train_data" / "1_0.npz")]
    assert {row.episode: row.reward for row in rows}.items() <= rewards.items()


def test_without_the_flags_nothing_is_written(tmp_path: Path) -> None:
    learn(World([1]), save=str(tmp_path / "save"))
    assert not [*tmp_path.rglob("*.npz")]


@pytest.mark.parametrize("tokens", [False, True])
def test_the_viewer_shows_both_kinds(
    tokens: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(World([1]), dump_details=str(tmp_path))
    flags = ["--tokens"] if tokens else []
    for name, word in (("rollout_data/1.rollouts", "sampled 6"), ("train_data/1_0.npz", "step 0")):
        assert main(["view", str(tmp_path / name), *flags]) == 0
        said = capsys.readouterr().out
        assert word in said
        assert ("position  tokens" in said) == tokens
    assert main(["view", str(tmp_path / "train_data/1_0.npz"), "--json"]) == 2
    assert "--json: " in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04 and no more", b"something else"])
def test_another_file_is_refused_by_name(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(text)
    with pytest.raises(DataError, match=r"a\.npz is no file of --save-debug-train-data, or it is"):
        [*read_train_data(tmp_path / "a.npz")]


@pytest.mark.parametrize(
    ("place", "num_ranks", "said"),
    [
        ("t/{rollout_id}", 2, "write {rank} where"),
        ("t/{rank}", 1, "write {rollout_id} where"),
        ("t/{rollout_id}_{rank}_{x}", 1, "{x} is unknown"),
        ("t/{rollout_id}_{rank}", 2, ""),
        ("t/{rollout_id:03d}", 1, ""),
    ],
)
def test_files_that_would_replace_each_other_are_refused(
    place: str, num_ranks: int, said: str
) -> None:
    config = RunConfig(save_debug_train_data=place, actor_num_gpus_per_node=num_ranks)
    found = " ".join(about_rollouts(config))
    assert (said in found) if said else not found
