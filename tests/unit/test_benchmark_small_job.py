"""What small environments teach: what is run, what is told of it, and what is done only once."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.small_job import SmallJob
from tests.unit.small_job_results import metrics

#: A program that writes its arguments where the model is to lie.
WARM = """import sys
from pathlib import Path
model = Path(sys.argv[2]) / "taught" / "hf"
model.mkdir(parents=True)
(model / "training.json").write_text(sys.argv[1])
"""


@pytest.fixture
def job(tmp_path: Path) -> SmallJob:
    warm = tmp_path / "warm.py"
    warm.write_text(WARM)
    return SmallJob(
        name="some_job",
        warm=warm,
        model="taught/hf",
        page=tmp_path / "page.py",
        flags={"env": "some", "n-samples-per-prompt": 2},
        sampled={"reward": "rollout/reward_mean", "calls": "rollout/tool_calls"},
        num_rollout=3,
    )


def test_rows_tell_of_evaluations_and_of_means_of_whole_windows(job: SmallJob) -> None:
    rewards = [0.1, 0.2, 0.3, 0.4, 0.5, *[0.6] * 5, 0.9]
    rows = {row.metric: row.value for row in job.rows_of(metrics(job, rewards), 3)}
    assert rows["seed 3, greedy after 0: reward"] == 0.4
    assert rows["seed 3, greedy after 11: reward"] == 0.6
    assert rows["seed 3, sampled until 5: reward"] == pytest.approx(0.3)
    assert rows["seed 3, sampled until 10: reward"] == pytest.approx(0.6)
    assert rows["seed 3, sampled until 10: calls"] == pytest.approx(0.6)
    assert len([name for name in rows if "sampled" in name]) == 2 * len(job.sampled)


def test_the_flags_of_a_job_win_over_those_of_all(job: SmallJob, tmp_path: Path) -> None:
    words = job.flags_of(tmp_path, 7, 30, tmp_path / "runs" / "seed-7")
    assert words[words.index("--n-samples-per-prompt") + 1] == "2"
    assert words.count("--n-samples-per-prompt") == 1
    assert words[words.index("--eval-temperature") + 1] == "0.0"  # its pages say `greedily`
    assert words[words.index("--rollout-seed") + 1] == words[words.index("--seed") + 1] == "7"


def test_a_warm_start_is_made_once_and_one_that_was_cut_is_set_aside(
    job: SmallJob, tmp_path: Path
) -> None:
    cut = tmp_path / "out" / "warm"
    cut.mkdir(parents=True)
    model = job.warm_start(tmp_path / "out")
    assert model == cut / "taught" / "hf"
    assert cut.with_name("warm.cut1").is_dir()
    # made once more it would fail: the folder is there
    again = msgspec.structs.replace(job, warm=tmp_path / "none.py")
    assert again.warm_start(tmp_path / "out") == model
