"""`agentrl explain-flags` answers each flag as the programs do."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.actors.group_scoring import FILTER
from agentrl.algorithms.load import ESTIMATORS
from agentrl.cli.main import main
from agentrl.config.command_line import read_flags
from agentrl.config.device import choose_here
from agentrl.config.explained import Explained, explain
from agentrl.config.launch_script import Argument
from agentrl.config.single_values import _NAMED, about_values
from agentrl.errors import ConfigError
from agentrl.tokens.formats.load import _KIND
from agentrl.user_code import Kind, load

pytestmark = pytest.mark.slow

_SCRIPT = """\
MODEL_ARGS=( --num-layers 24 --swiglu )
python3 train_async.py --lr 1e-6 --release-train --balance-data \\
   --hf-checkpoint $BASE_DIR/model --global-batch-size 64 --rollout-batch-size 8 \\
   --n-samples-per-prompt 8 ${MODEL_ARGS[@]} --sglang-mem-fraction-static 0.7 \\
   --sglang-moe-dp-size 8 --moe-frobnicate 3 --num-epoch 'a b' --save "/out/run 1"
"""


def _answers(text: str) -> dict[str, tuple[str, str]]:
    found = explain([Argument(word) for word in shlex.split(text)])
    return {one.flag: (one.answer, one.says) for one in found}


def _judged(text: str) -> list[Explained]:
    """The answers where words with a $ are such as only a run can tell."""
    return explain([Argument(word, known="$" not in word) for word in text.split()])


def _written(tmp_path: Path, text: str = _SCRIPT) -> str:
    path = tmp_path / "run.sh"
    path.write_text(text)
    return str(path)


def test_a_script_is_explained_and_the_line_to_run_leaves_out_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain-flags", _written(tmp_path)]) == 1

    page = capsys.readouterr().out
    rows = {row.split()[0]: row for row in page.splitlines() if row.startswith("--")}
    assert "refused" in rows["--release-train"]
    assert "already so" in rows["--balance-data"]
    assert "works" in rows["--lr"]
    assert "14 flags: 8 works, 4 refused, 2 already so" in page
    assert ":3: $BASE_DIR comes from outside of the script" in page
    line = page[page.index("python train_async.py") :]
    assert "--hf-checkpoint $BASE_DIR/model" in line
    words = shlex.split(line.replace("\\\n", ""))[2:]
    assert words[words.index("--save") + 1] == "/out/run 1"
    left = {"--release-train", "--sglang-moe-dp-size", "--moe-frobnicate", "--num-epoch"}
    assert not left & {*words}
    assert read_flags(words).refused == []


@pytest.mark.parametrize(
    ("text", "answer", "says"),
    [
        ("--lr 1e-6", "works", "Learning rate"),
        ("--lr fast", "refused", "cannot be 'fast'"),
        ("--swiglu", "works", "Read by the learner"),
        ("--hidden-dropout 0.1", "refused", "cannot be 0.1"),
        ("--rm-type math", "works", "rewards that ship"),
        ("--sglang-mem-fraction-static 0.7", "works", "Passed to the engines"),
        ("--sglang-moe-dp-size 8", "refused", "--sglang-ep-size"),
        ("--sglang-cuda-graph-max-bs 8", "works", "--sglang-cuda-graph-max-bs-decode"),
        ("--release-train", "refused", "ends while engines generate"),
        ("--use-dynamic-batch-size", "already so", "always packed"),
        ("--group-size 8", "refused", "--n-samples-per-prompt"),
        ("--utter-nonsense 8", "refused", "unknown flag"),
        ("--rollout-top-p 0.9", "refused", "training needs the probabilities of all tokens"),
        ("--rollout-top-p 1.0", "works", ""),
        ("--rm-type nonsense", "refused", "there is no reward 'nonsense'; known: "),
        ("--rm-type boxed_math", "works", "rewards that ship"),
        ("--advantage-estimator foo", "refused", "there is no algorithm 'foo'; known: "),
        ("--advantage-estimator mine.py:Mine", "works", ""),
        ("--chat-format quen3", "refused", "there is no chat format 'quen3'; did you mean "),
        ("--dynamic-sampling-filter-path nonsense", "refused", "there is no filter 'nonsense'"),
        ("--eps-clip 2", "refused", "a ratio cannot fall below 0"),
        ("--save-hf m_{foo}", "refused", "{foo} is unknown"),
        ("--sglang-pp-size 2", "refused", "every stage of an engine would join a weight push"),
    ],
)
def test_a_flag_has_the_answer_of_the_programs(text: str, answer: str, says: str) -> None:
    ((found, said),) = _answers(text).values()

    assert found == answer
    assert says in said


def test_what_training_cannot_sample_an_evaluation_can() -> None:
    assert _answers("--rollout-top-p 0.9 --eval-only")["--rollout-top-p"][0] == "works"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("advantage_estimator", ESTIMATORS),
        ("chat_format", _KIND),
        ("dynamic_sampling_filter_path", FILTER),
    ],
)
def test_a_name_is_looked_for_where_a_run_looks_for_it(name: str, kind: Kind[Any]) -> None:
    (line,) = about_values({name: "nonsense"}, {})
    with pytest.raises(ConfigError) as caught:
        load(kind, "nonsense")
    assert str(caught.value).endswith(line)
    assert _NAMED[name].group == kind.group


def test_a_flag_that_another_one_settles_is_answered_by_both() -> None:
    agrees = _answers("--global-batch-size 64 --rollout-batch-size 8 --n-samples-per-prompt 8")
    contradicts = _answers(
        "--global-batch-size 64 --rollout-batch-size 8 --n-samples-per-prompt 8 "
        "--num-steps-per-rollout 2"
    )

    assert agrees["--global-batch-size"][0] == "already so"
    assert contradicts["--global-batch-size"][0] == "refused"
    assert "64 episodes are not 2 steps" in contradicts["--global-batch-size"][1]


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--num-rollout", "works"),
        ("--eval-min-new-tokens", "unknown"),
        ("--global-batch-size", "unknown"),
        ("--custom-model-provider-path", "refused"),
        ("--utter-nonsense", "refused"),
    ],
)
def test_a_value_that_only_a_run_can_tell_is_not_judged(flag: str, answer: str) -> None:
    (found,) = explain([Argument(flag), Argument("${N}", known=False)])

    assert found.answer == answer
    assert [word.text for word in found.words] == [flag, "${N}"]
    assert ("not judged" in found.says) == (answer != "refused")


@pytest.mark.parametrize(
    ("given", "answer", "says"),
    [
        ("", "refused", "--actor-num-gpus-per-node is 1; make it 1"),  # the CPU of this host
        ("--actor-num-gpus-per-node 4", "already so", "in the ranks of the policy"),
        ("--actor-num-gpus-per-node 8", "refused", "--actor-num-gpus-per-node is 8; make it 8"),
        ("--preset search-r1-local --device auto", "refused", "is 1; make it 1"),
        ("--preset nonesuch --actor-num-gpus-per-node 4", "already so", ""),
        ("--ray-address here:6379", "refused", "is 8; make it 8"),
        ("--ray-address $HEAD", "refused", "is 8; make it 8"),
        ("--device $DEVICE", "unknown", "--device is not judged"),
        ("--actor-num-gpus-per-node $N", "unknown", "--actor-num-gpus-per-node is not judged"),
        ("--actor-num-gpus-per-node $N --actor-num-gpus-per-node 4", "already so", ""),
        ("--actor-num-nodes $N --actor-num-gpus-per-node 4", "already so", ""),
    ],
)
def test_the_ranks_of_a_critic_are_compared_with_those_that_a_run_has(
    given: str, answer: str, says: str
) -> None:
    if not given.startswith(("--actor", "--ray")) and choose_here("auto").device == "cuda":
        pytest.skip("on the GPUs of this host the learner has 8 ranks")
    found = _judged(f"{given} --critic-num-gpus-per-node 4")[-1]
    assert found.answer == answer
    assert says in found.says


def test_a_batch_is_not_judged_by_sizes_that_only_a_run_can_tell() -> None:
    given = "--rollout-batch-size $N --n-samples-per-prompt 8"
    found = _judged(f"{given} --num-steps-per-rollout 2 --global-batch-size 64")[-1]
    assert (found.answer, found.says.endswith("--rollout-batch-size is not judged")) == (
        "unknown",
        True,
    )
    given = "--rollout-batch-size 8 --n-samples-per-prompt 8 --num-steps-per-rollout $N"
    assert _judged(f"{given} --global-batch-size 64")[-1].answer == "unknown"


@pytest.mark.parametrize(
    ("given", "answer", "says"),
    [
        ("--config FILE", "refused", "4 x --n-samples-per-prompt 3 = 12"),
        ("--config FILE --rollout-batch-size 32", "refused", "32 x --n-samples-per-prompt 3 = 96"),
        ("--rollout-batch-size 32 --n-samples-per-prompt 8 --config FILE", "already so", "= 256"),
        ("--config=FILE --n-samples-per-prompt 64", "already so", "4 x --n-samples-per-prompt 64"),
        ("--config missing.toml", "unknown", "--config is not judged"),
        ("--config $SETTINGS", "unknown", "--config is not judged"),
        ("--config missing.toml --config FILE", "refused", "4 x --n-samples-per-prompt 3 = 12"),
    ],
)
def test_sizes_in_a_file_of_settings_count(
    given: str, answer: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("rollout_batch_size = 4\nn_samples_per_prompt = 3\nnum_steps_per_rollout = 1\n")
    found = _judged(f"{given.replace('FILE', str(path))} --global-batch-size 256")[-1]
    assert found.answer == answer
    assert says in found.says


@pytest.mark.parametrize(
    ("given", "apart"),
    [
        ("--hf-checkpoint /m $X", True),
        ("--hf-checkpoint=/m $X", True),
        ("--hf-checkpoint $M $X", True),
        ("--colocate $X", True),
        ("--no-colocate $X --lr 1", True),
        ("--use-dynamic-batch-size $X", True),
        ("--swiglu $X", True),
        ("--sglang-mem-fraction-static 0.7 $X", True),
        ("--sglang-cuda-graph-max-bs 8 $X", True),
        ("--hf-checkpoint $X", False),
        ("--rollout-stop-token-ids 1 $X", False),
        ("--sglang-cuda-graph-bs 1 2 $X", False),
        ("--release-train 1 $X", False),
    ],
)
def test_a_word_behind_a_complete_value_may_hold_flags(
    given: str, apart: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _judged(given)
    assert ([one.value for one in found if one.answer == "unknown"] == ["$X"]) == apart
    code = main(["explain-flags", _written(tmp_path, f"python train.py {given}\n")])
    page = capsys.readouterr().out
    assert ("not answered: the flags in $X" in page) == apart
    assert code == (1 if apart or "--release-train" in given else 0)
    assert shlex.split(page.partition("python train.py")[2].replace("\\\n", "")) == (
        [] if "--release-train" in given else given.replace("=", " ").split()
    )


def test_a_flag_that_is_given_twice_says_which_one_counts() -> None:
    first, last = explain([Argument(word) for word in ("--lr", "1", "--lr", "2")])

    assert first.says == "given again further on, and the last one counts"
    assert last.says == "Learning rate"


def test_flags_may_stand_in_place_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-flags", "--", "--lr", "1e-6", "--seed=3"]) == 0
    assert "2 flags: 2 works" in capsys.readouterr().out

    assert main(["explain-flags", "--program", "train_async", "--", "--lr", "1e-6"]) == 0
    assert "python train_async.py" in capsys.readouterr().out


def test_the_line_to_run_gives_a_shell_the_words_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blanks, quotes, ends of lines and what is outside of the script all arrive."""
    words = [
        "--save",
        "/out/it's a run",
        "--input-key",
        "a\tb\nc",
        "--load",
        "$NO *",
        "--seed",
        "3",
    ]
    text = f'A=({shlex.join(words)} --hf-checkpoint "$BASE_DIR/my model")\n'
    main(["explain-flags", _written(tmp_path, text + 'python3 train.py "${A[@]}" --lr=1e-6\n')])

    line = capsys.readouterr().out.partition("python train.py")[2]

    shell = f'python() {{ printf "%s\\0" "$@"; }}\npython train.py{line}'
    done = subprocess.run(
        ["bash", "-c", shell],
        capture_output=True,
        text=True,
        env={"BASE_DIR": "/my base"},
        timeout=120,
        check=True,
    )
    expected = ["train.py", *words, "--hf-checkpoint", "/my base/my model", "--lr", "1e-6"]
    assert done.stdout.split("\0")[:-1] == expected


def test_a_secret_of_a_script_stays_out_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "WANDB_KEY=abc-secret\npython3 train.py --wandb-key ${WANDB_KEY} --input-key q\n"

    main(["explain-flags", _written(tmp_path, text)])

    page = capsys.readouterr().out
    assert "abc-secret" not in page
    assert "(hidden)" in page
    assert '--wandb-key "${WANDB_KEY}"' in page
    assert "--input-key q" in page


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_the_table_fits_a_terminal(
    columns: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    main(["explain-flags", _written(tmp_path, 'python3 train.py --save "a\nb" --colocate\n')])

    table, _, _ = capsys.readouterr().out.partition("\n\n")
    assert "--save                              a b " in table
    assert max(map(len, table.splitlines())) <= max(80, columns)


def test_a_broken_line_is_told_and_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _written(tmp_path, "python3 train.py --lr 1\n   --seed 3\n")

    assert main(["explain-flags", path]) == 1

    assert f"broken: {path}:1: this line lacks its backslash" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """As `agentrl explain-flags run.sh | head`."""
    command = [sys.executable, "-m", "agentrl.cli", "explain-flags", _written(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.stderr.read() == ""
        assert started.wait(timeout=1800) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a launch script"),
        (["one.sh", "two.sh"], "'two.sh' is one word too many"),
        (["none.sh"], "none.sh is nothing, not a script"),
    ],
)
def test_what_is_no_script_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain-flags", *words]) == 2

    assert said in capsys.readouterr().err
