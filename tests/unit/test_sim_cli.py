"""`agentrl simulate`, as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, StoredTrajectory
from agentrl.cli.main import main
from agentrl.types import Outcome, PayloadRef, Task, TrajectoryMeta

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "simulate",
    *("--rollout-num-gpus", "1", "2", "--num-gpus", "3", "--step-gpu-s", "60"),
    *("--async-buffer-size", "2", "--max-staleness", "1", "2"),
    *("--rollout-batch-size", "2", "--n-samples-per-prompt", "2"),
    *("--num-rollout", "6", "--warm-up", "2"),
]
HEAVY = {"torch", "ray", "sglang", "sglang_router", "megatron", "transformers"}
SETTINGS = """
rollout_num_gpus = 2
actor_num_nodes = 1
actor_num_gpus_per_node = 3
rollout_batch_size = 2
n_samples_per_prompt = 2
num_steps_per_rollout = 2
async_buffer_size = 3
update_weights_interval = 1
max_staleness = 2
"""
SCRIPT = """
import json, sys
from agentrl.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def test_every_combination_is_a_row_under_the_synchronous_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(SMALL) == 0
    head, sync, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["gpus", "B", "I", "S", "policy"]
    assert sync.split()[:5] == ["sync", "0", "1", "0", "mask"]
    assert [row.split()[:5] for row in rows] == [
        ["1+2", "2", "1", "1", "mask"],
        ["1+2", "2", "1", "2", "mask"],
        ["2+1", "2", "1", "1", "mask"],
        ["2+1", "2", "1", "2", "mask"],
    ]
    assert all(int(row.split()[8]) <= int(row.split()[3]) for row in rows), "older than the bound"


def test_without_a_split_a_quarter_half_and_three_quarters_are_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = "--turns 1 --rollout-batch-size 1 --n-samples-per-prompt 1 --num-rollout 2 --warm-up 0"
    splits = {
        "--num-gpus 8": ["sync", "2+6", "4+4", "6+2"],
        "--num-gpus 8 --rollout-num-gpus-per-engine 4": ["sync", "4+4"],
        "--num-gpus 2": ["sync", "1+1"],
    }
    for flags, expected in splits.items():
        assert main(["simulate", *tiny.split(), *flags.split()]) == 0
        table = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in table[1:]] == expected


# ---- a recorded run ----


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two groups of two episodes, one of them failed; two iterations."""
    rows = list[GroupRow | EpisodeRow]()
    for mint in (1, 2):
        rows.append(GroupRow(mint, Task(str(mint), {}), 2, mint))
        for index in (0, 1):
            tokens = 10 * mint + index
            meta = TrajectoryMeta(50, tokens, mint, 0.0, [(0, tokens)])
            stored = StoredTrajectory(meta, PayloadRef("buffer", 1, 0, 1, 0))
            failed = (mint, index) == (2, 1)
            outcome = Outcome.ENV_ERROR if failed else Outcome.DONE
            trajectories = () if failed else (stored,)
            rows.append(EpisodeRow(mint, index, outcome=outcome, trajectories=trajectories))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit(rows)
    (tmp_path / "config.toml").write_text(SETTINGS)
    lines: list[dict[str, object]] = [{"step": 0, "eval": {}}]
    for wait_s, whole_s in ((9.0, 19.0), (2.0, 14.0), (1.0, 13.0)):
        metrics = {"perf/lease_wait_s": wait_s, "perf/iteration_s": whole_s}
        lines.append({"step": 1, "metrics": metrics | {"perf/push_pause_s": 0.5}})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_recorded_run_gives_lengths_seconds_and_settings(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--async-buffer-size 1 3 --num-rollout 4 --warm-up 1 --tool-s 1 0"
    assert main(["simulate", str(run), *given.split()]) == 0
    about, _, sync, *rows = capsys.readouterr().out.splitlines()
    assert about.startswith(
        f"{run}: 3 episodes of 2 groups: 11 sampled tokens in the median, 20 at most, 1.33 turns;"
        " 12 s of training in an iteration, 0.5 s in a push;"
    )
    assert [row.split()[:4] for row in rows] == [["2+3", "1", "1", "2"], ["2+3", "3", "1", "2"]]
    seconds_on_all_five = 12.0 * 3 / 5 + 0.5
    assert seconds_on_all_five < float(sync.split()[5]) < seconds_on_all_five + 2.0


@pytest.mark.parametrize(
    ("missing", "more", "said", "code"),
    [
        ("config.toml", "", "config.toml cannot be read", 65),
        ("ledger.db", "", "has no ledger.db: it is no directory of a run that was played", 65),
        ("metrics.jsonl", "", "metrics.jsonl cannot be read", 65),
        ("", "--tokens 9 0 --turns 2", "--tokens, --turns:", 2),
    ],
)
def test_a_run_that_says_too_little_or_is_told_otherwise_is_refused(
    missing: str,
    more: str,
    said: str,
    code: int,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if missing:
        (run / missing).unlink()
    assert main(["simulate", str(run), *more.split()]) == code
    seen = capsys.readouterr()
    assert said in seen.err
    assert seen.out == ""


def test_a_run_that_is_still_going_on_is_recalled_as_it_is_now(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(run / "ledger.db"):
        assert main(["simulate", str(run), "--num-rollout", "2", "--warm-up", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{run}: 3 episodes of 2 groups")


def test_a_run_that_trained_nothing_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "metrics.jsonl").write_text("")
    assert main(["simulate", str(run)]) == 65
    assert "the run has trained no iteration" in capsys.readouterr().err


# ---- refusals ----


def test_the_table_is_the_same_in_every_process_and_needs_nothing_heavy() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", SCRIPT, *SMALL]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1]
    code, modules = json.loads(outputs[0].splitlines()[-1])
    assert code == 0
    assert not HEAVY & set(modules)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--num-gpus 4 --rollout-num-gpus 4", "4 engines and 0 GPUs of the learner"),
        ("--update-weights-interval 4 --max-staleness 1", "S = 1 is below I - 1 = 3"),
        ("--token-s 0 --request-s 0", "an engine takes no time for a token"),
        (
            "--rollout-num-gpus 3 --rollout-num-gpus-per-engine 2",
            "--rollout-num-gpus 3 does not divide into engines of 2",
        ),
        ("--num-rollout 5 --warm-up 5", "--warm-up 5 leaves nothing of --num-rollout 5"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_numbers(
    argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *argv.split()]) == 2
    seen = capsys.readouterr()
    assert said in seen.err
    assert seen.out == ""


@pytest.mark.parametrize(
    "argv", ["--turns 0", "--tokens 100", "--push-s -1", "--seed x", "--staleness-policy no"]
)
def test_a_wrong_number_is_a_wrong_command_line(argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *argv.split()])
    assert ended.value.code == 2
