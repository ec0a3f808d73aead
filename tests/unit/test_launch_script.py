"""A launch script is read as a shell reads it, up to what only a run can know."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentrl.config.launch_script import MAX_BYTES, read_script
from agentrl.errors import ConfigError

_MODEL = """\
NUM_DENSE=4
MODEL_ARGS=(
   --swiglu
   --num-layers $((NUM_DENSE * 6))
   --hidden-size 896
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --normalization "RMSNorm"
)
"""
_SCRIPT = """\
#!/bin/bash
# stops what an earlier run has left
set -ex
export PYTHONUNBUFFERED=1

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
ROTARY=${ROTARY:-5000000}
MODEL_ARGS_ROTARY_BASE=$ROTARY source "${HERE}/models/small.sh"
DATA="${HERE}/my data"

CKPT_ARGS=(
   --hf-checkpoint /models/small
   #--hf-checkpoint /models/other
   --save '/out/run 1'  --save-interval 20   # both
)
ROLLOUT_ARGS=(
   --prompt-data "$DATA/train.jsonl" --input-key prompt
   --rollout-batch-size 32
   --n-samples-per-prompt 8 \\
   --rollout-stop-token-ids 1 2 3
)
ROLLOUT_ARGS+=( --rollout-max-response-len $(( 8 * 1024 )) )
EVAL_ARGS=(
   --eval-prompt-data aime ${DATA}.jsonl
)
EMPTY_ARGS=(
   # --use-wandb
)
EXTRA="--seed 7   --lr 1e-6"
ENV_JSON="{
  \\"env_vars\\": {\\"A\\": \\"$((1 + 1))\\", \\"HASH\\": \\"#no comment\\"}
}"
cat > /dev/null <<END
--lost "by nobody
END

ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="${ENV_JSON}" \\
   -- python3 -u train.py \\
   --actor-num-nodes 1 \\
   "${MODEL_ARGS[@]}" ${CKPT_ARGS[@]} \\
   "${ROLLOUT_ARGS[@]}" \\
   ${EVAL_ARGS[@]} ${EMPTY_ARGS[@]} "${EMPTY_ARGS[@]}" \\
   ${EXTRA} \\
   --metadata '{"a": "b c"}' --name="x y"z\\ w 2>&1 | tee log.txt
echo "the end; train.py was run"
"""


def _write(folder: Path, script: str = _SCRIPT) -> Path:
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "small.sh").write_text(_MODEL)
    path = folder / "run.sh"
    path.write_text(script)
    return path


def _passed(path: Path) -> list[str]:
    """What bash passes: the script below, with a `ray` that only prints."""
    stubs = path.parent / "stubs"
    stubs.mkdir()
    (stubs / "cat").symlink_to(str(shutil.which("cat")))
    (stubs / "ray").write_text("#!/bin/sh\nfor w; do printf '%s\\0' \"$w\"; done\n")
    (stubs / "dirname").symlink_to(str(shutil.which("dirname")))
    (stubs / "ray").chmod(0o755)
    done = subprocess.run(
        [str(shutil.which("bash")), str(path)],
        cwd=path.parent,
        env={"PATH": str(stubs)},
        capture_output=True,
        timeout=500,
        check=False,
    )
    words = done.stdout.decode().partition("train.py\0")[2].split("\0")
    return words[:-1]


def _command(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_script_gives_the_words_that_bash_passes(tmp_path: Path) -> None:
    path = _write(tmp_path)

    read = read_script(path)

    assert read.argv == _passed(_write(tmp_path, _SCRIPT.replace(" 2>&1 | tee log.txt", "")))
    assert read.program == "train"
    assert read.unknown == ()
    assert read.broken == ()
    assert "--num-layers" in read.argv
    assert "24" in read.argv


def test_what_only_a_run_can_know_stays_as_it_was_written_and_is_told(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        _command(
            'if [ -n "$HOST" ]; then',
            "   WANDB_ARGS=( --use-wandb )",
            "fi",
            "for i in 1 2; do layers+=(1); done",
            "printf -v FREQ '%s' \"${layers[*]}\"",
            "python3 train_async.py --load $BASE_DIR/x --gpus ${GPUS:-$(nvidia-smi -L | wc -l)} \\",
            '   --sizes 1 2 $(seq 16 8 256) ${WANDB_ARGS[@]} ${NOBODY[@]} --freq "$FREQ" --end',
        ),
    )

    read = read_script(path)

    assert read.program == "train_async"
    assert [argument.text for argument in read.arguments if not argument.known] == [
        "$BASE_DIR/x",
        "${GPUS:-$(nvidia-smi -L | wc -l)}",
        "$(seq 16 8 256)",
        "${WANDB_ARGS[@]}",
        '"$FREQ"',
    ]
    assert read.argv[-1] == "--end"
    assert [line.removeprefix(f"{path}:") for line in read.unknown] == [
        "6: $BASE_DIR comes from outside of the script",
        "6: ${GPUS:-$(nvidia-smi -L | wc -l)} has a default that only a run can tell",
        "7: $(seq 16 8 256) is known to a run only",
        f"7: ${{WANDB_ARGS[@]}} is set under a condition ({path}:2)",
        "7: ${NOBODY[@]} is never set: it gives nothing",
        f"7: $FREQ is set by printf ({path}:5)",
    ]


_COMMENT = "has a comment, which ends the command as in a shell, its backslash included"


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("--two 2", "lacks its backslash"),
        ("--two 2 \\ ", "ends with a backslash and a blank, which continues nothing"),
        ("# --two 2 \\", _COMMENT),
        ("--two 2 # why \\", _COMMENT),
        ("--two 2 \\  # why", "ends with a backslash and a blank, which continues nothing"),
        ("--two '# 2'", "lacks its backslash"),
    ],
)
def test_a_line_that_loses_the_arguments_behind_it_is_told(
    tmp_path: Path, ending: str, reason: str
) -> None:
    rest = ["${REST[@]} \\", "--four 4"]
    path = _write(
        tmp_path, _command("REST=(--three 3)", "python train.py --one 1 \\", ending, *rest)
    )

    read = read_script(path)

    assert "--four" not in read.argv
    assert read.broken == (f"{path}:3: this line {reason}: 4 arguments from line 4 on are lost",)


def test_a_sourced_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        _command("source /nowhere/at/all.sh", "source $ROOT/x.sh", "python train.py ${ARGS[@]}"),
    )

    read = read_script(path)

    assert read.broken == (f"{path}:1: there is no /nowhere/at/all.sh, which it sources",)
    assert (
        f"{path}:2: $ROOT/x.sh cannot be sourced: where it is, only a run can tell" in read.unknown
    )


def test_a_file_of_the_container_is_found_in_the_checkout(tmp_path: Path) -> None:
    """Slime's examples source /root/slime/scripts/models/NAME.sh."""
    text = "source /container/slime/models/small.sh\npython3 train.py ${MODEL_ARGS[@]}\n"
    (tmp_path / "examples").mkdir()
    _write(tmp_path)
    path = tmp_path / "examples" / "run.sh"
    path.write_text(text)

    read = read_script(path)

    assert read.argv[:3] == ["--swiglu", "--num-layers", "24"]
    here = tmp_path / "models/small.sh"
    missing = f"{path}:1: there is no /container/slime/models/small.sh"
    assert read.unknown == (f"{missing}; {here} is read in its place",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo train.py\n", "calls neither train.py nor train_async.py"),
        (
            "python train.py --a\nif x; then\npython train_async.py --b\nfi\n",
            "calls a program of training in line 1 and line 3; keep one of them",
        ),
        ('A="open\npython train.py\n', "run.sh:1: nothing closes the quote that begins here"),
        ("B=1\nA=(\n --x\npython train.py\n", "run.sh:2: nothing closes the array"),
        ("A=$(ls\npython train.py\n", "run.sh:1: nothing closes the ( that begins here"),
        ("source run.sh\npython train.py\n", "scripts source each other in a circle"),
        ("#" * (MAX_BYTES + 1), f"has {MAX_BYTES + 1} bytes; a launch script has at most"),
        ("\n\udcff python train.py\n", "run.sh:2 is no text in UTF-8: byte 0xff"),
        ("\ufeffpython train.py\n", "begins with a byte order mark"),
        ("python train.py \0\n", "it holds a NUL byte"),
        ("A=1\npython train.py \\\r\n --lr 1\r\n", "run.sh:2: a carriage return"),
        ("A=(\n --x 1\nB=(\n --y\n)\npython train.py\n", "run.sh:1: nothing closes the array A"),
        ("A= ( 1 )\npython train.py\n", "run.sh:1: ( may not stand here"),
        ("if true; then\npython train.py\n", "run.sh:1: nothing closes the if"),
        ("python train.py\nfi\n", "run.sh:2: fi may not stand here"),
        (": <<END\npython train.py\n", "run.sh:1: nothing ends the here-document END"),
        ("go() {\n python train.py\n}\n", "nothing calls the function go of line 1"),
        ("exit 0\npython train.py\n", "neither train.py nor train_async.py; it ends in line 1"),
        ("go() { go; }\ngo\npython train.py\n", "run.sh:1: go calls itself without end"),
        ("A=xxxxxxxx\n" + "A=$A$A\n" * 40, "A has more than 1048576 characters"),
        ("A=(1 2)\n" + 'A+=("${A[@]}")\n' * 40, "10000 items"),
        ("A=" + "$(" * 999, "run.sh:1: more than 40 substitutions nest here"),
        ("if " * 999, "run.sh:1: more than 100 blocks nest here"),
    ],
)
def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text, errors="surrogateescape")

    with pytest.raises(ConfigError) as caught:
        read_script(path)

    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("A=$'a\\tb'\npython train.py $A", ["a", "b"]),
        ("A=(1 2)\nA=3\npython train.py ${A[@]}", ["3", "2"]),
        ('A=(1 "2 3")\npython train.py "${A[*]}"', ["1 2 3"]),
        ("A=' a'\npython train.py x$A", ["x", "a"]),
        ("A=b\npython train.py ${A:-{x}}", ["b}"]),
        ("A=1+1\nB=$((2 * 3 % 4))\npython train.py $B", ["2"]),
        (": ${A:=x}\npython train.py $A", ["x"]),
        (": <<\\END\nA=(\nEND\npython train.py --a", ["--a"]),
        ("go() { local A=2; python train.py $A; }\nA=1\ngo", ["2"]),
        ("main() { python train.py $A; }\nA=late\nmain", ["late"]),
        ("CALL=(python3 -u train.py)\n${CALL[@]} --a", ["--a"]),
    ],
)
def test_what_a_shell_does_to_a_word_is_done(
    tmp_path: Path, script: str, arguments: list[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{script}\n")

    read = read_script(path)

    assert read.argv == arguments
    assert (read.unknown, read.broken) == ((), ())


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("A=1\nfor A in 2 3; do :; done\npython train.py $A", "$A is set by for"),
        ("A=1\n((A++))\npython train.py $A", "$A is set by a sum"),
        ("A=1\neval A=2\npython train.py $A", "$A may be set by eval"),
        ("A=1\ntrue &&\nA=2\npython train.py $A", "$A is set under a condition"),
        ("A=1\nA=2 | true\npython train.py $A", "$A is set under a condition"),
        ("A=()\nA[9]=x\npython train.py ${A[@]}", "${A[@]} has gaps"),
        ("python train.py ~/data", "~/data begins in a home folder"),
        ("python train.py data/*.jsonl", "data/*.jsonl is a pattern of file names"),
        ("python train.py data-{1,2}", "data-{1,2} has braces that a shell expands"),
        ("python train.py ${HOME:-/root}", "${HOME:-/root} has a value in this environment"),
        ("A=2\npython train.py $(seq $A)", "$(seq $A) is known to a run only; it needs A of the"),
        ("while true; do\npython train.py x\ndone", "the program runs in a loop"),
    ],
)
def test_what_is_not_followed_is_told_by_its_line(tmp_path: Path, script: str, told: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{script}\n")

    (line,) = read_script(path).unknown

    assert line.startswith(f"{path}:")
    assert told in line


def test_a_backslash_and_a_blank_in_a_list_are_told(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("A=(\n --lr 1 \\ \n --seed 2\n)\npython train.py ${A[@]}\n")

    assert read_script(path).broken == (
        f"{path}:2: this line ends with a backslash and a blank, which the list then holds",
    )


def test_what_is_no_script_is_refused_and_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.sh")

    for name, kind in (("fifo.sh", "a FIFO"), ("none.sh", "nothing"), (".", "a directory")):
        with pytest.raises(ConfigError, match=f"is {kind}, not a script"):
            read_script(tmp_path / name)
