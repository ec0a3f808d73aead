"""What `agentrl explain-flags` says a shell has to be told before the line that it prints."""

import shlex
import subprocess
from pathlib import Path

import pytest

from agentrl.cli.main import main

pytestmark = pytest.mark.slow

#: As slime's file of Qwen3-30B-A3B.
_MODEL = """\
NLAYERS=3
arr=()
for ((i=0; i<NLAYERS; i++)); do arr+=(1); done
printf -v MOE_LAYER_FREQ "[%s]" "$(IFS=', '; echo "${arr[*]}")"
MODEL_ARGS=(--num-layers $NLAYERS --moe-layer-freq $MOE_LAYER_FREQ)
"""
_SCRIPT = """\
source "$(dirname "$0")/models/a b.sh"
if [ -d /nvlink ]; then GPUS=4; else GPUS=2; fi
read -a EXTRA_ARGS <<< "--lr 1e-6"
python3 train.py ${MODEL_ARGS[@]} --load $BASE_DIR_OF_NOBODY/x --seed $GPUS \\
    --save "${HOME}/y" --save-interval ${NUM_OF_NOBODY:-4} --wandb-key abc "${EXTRA_ARGS[@]}"
"""


def page_of(folder: Path, script: str, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "models").mkdir()
    (folder / "models" / "a b.sh").write_text(_MODEL)
    (folder / "run.sh").write_text(script)
    main(["explain-flags", str(folder / "run.sh")])
    return capsys.readouterr().out


def told(page: str) -> list[str]:
    _, _, rest = page.partition("one that does not have it is told first:\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


def test_the_variables_that_a_line_needs_are_named_with_what_sets_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(page_of(tmp_path, _SCRIPT, capsys)) == [
        f"source '{tmp_path}/models/a b.sh'  # sets NLAYERS, MOE_LAYER_FREQ",
        "export BASE_DIR_OF_NOBODY=...  # comes from outside of the script",
        "export GPUS=...  # run.sh sets it",
        "EXTRA_ARGS=( ... )  # run.sh sets it",
        "export WANDB_KEY=...  # is a secret",
    ]


def test_a_fresh_shell_that_is_told_them_runs_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tmp_path, _SCRIPT, capsys)
    values = iter(["/base", "2", "--lr 1e-6", "abc"])
    first = [line.replace("...", next(values)) if "..." in line else line for line in told(page)]
    line = "python train.py" + page.partition("python train.py")[2]
    done = subprocess.run(
        ["bash", "-c", "\n".join(['python() { printf "%s\\0" "$@"; }', *first, line])],
        capture_output=True,
        text=True,
        env={"HOME": "/home"},
        timeout=120,
        check=True,
    )
    expected = "train.py --num-layers 3 --moe-layer-freq [1,1,1] --load /base/x --seed 2 --save"
    expected += " /home/y --save-interval 4 --wandb-key abc --lr 1e-6"
    assert done.stdout.split("\0")[:-1] == shlex.split(expected)


@pytest.mark.parametrize(
    ("words", "is_said"),
    [("--seed 3", False), ("--seed $(date +%s)", True), ("--seed $RANDOM", True)],
)
def test_what_a_shell_knows_by_itself_is_not_asked_for(
    words: str, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tmp_path, f"python3 train.py {words}\n", capsys)
    assert told(page) == []
    assert ("the shell that runs it fills in" in page) == is_said
