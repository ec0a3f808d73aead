"""`agentrl explain-flags` finds in a script the flags that bash passes: all that slime's scripts
pass, as they were recorded, written as such a script writes them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.main import main
from agentrl.config.explained import explain
from agentrl.config.launch_script import Argument, LaunchScript, read_script
from scripts.slime_scripts.compare import agrees, flags

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/fixtures/slime_scripts.json"
ROWS: list[dict[str, Any]] = [
    row for row in json.loads(RECORD.read_text())["scripts"] if row["program"]
]


def _bare(word: str) -> str:
    """A word as scripts write it: without quotes, be it a pattern of file names."""
    return word if re.fullmatch(r"[\w./:,=@%+*\[\]-]+", word, re.ASCII) else shlex.quote(word)


def _script(path: Path, row: dict[str, Any]) -> LaunchScript:
    """A script with lists of ten words each that passes the words of a row."""
    lists = [row["argv"][at : at + 10] for at in range(0, len(row["argv"]), 10)]
    lines = [f"A{at}=({' '.join(map(_bare, words))})" for at, words in enumerate(lists)]
    names = " ".join(f'"${{A{at}[@]}}"' for at in range(len(lists)))
    path.write_text("\n".join([*lines, f"python3 {row['program']}.py {names}"]) + "\n")
    return read_script(path)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['path']}-{at}" for at, row in enumerate(ROWS)])
def test_each_flag_of_a_script_is_found(row: dict[str, Any], tmp_path: Path) -> None:
    read = _script(tmp_path / "run.sh", row)

    found = [one.flag for one in explain(read.arguments, read.program)]

    assert [flag.partition("=")[0] for flag in found] == flags(row["argv"])
    assert agrees(read, row["argv"], str(tmp_path))


def test_a_layout_of_layers_is_a_word_with_its_variables_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "DENSE=3\nMODEL_ARGS=(--swiglu\n --moe-layer-freq [0]*$DENSE+[1]*75 --num-layers 78)\n"
        "python3 train.py ${MODEL_ARGS[@]}\n"
    )
    argv = ["--swiglu", "--moe-layer-freq", '"[0]*3+[1]*75"', "--num-layers", "78"]
    assert read_script(path).argv == argv


@pytest.mark.parametrize("item", ["[3]=x", "[a[0]]=x", "[3]+=x", '["a]b"]=x', "['k']=", "[$N]=x"])
def test_a_list_with_keys_is_known_to_a_run_only(item: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"A=(--lr {item} 1)\npython3 train.py ${{A[@]}}\n")
    (argument,) = read_script(path).arguments
    assert argument.many
    assert "has keys that only a run can tell" in argument.whys[0]


@pytest.mark.parametrize("item", ["[3]", "[0]*3=4", "'[3]=x'", "[0]]=x"])
def test_a_word_with_brackets_is_no_key(item: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"A=(--save {item} --lr 1)\npython3 train.py ${{A[@]}}\n")
    assert flags(read_script(path).argv) == ["--save", "--lr"]


def test_flags_in_a_list_that_nobody_knows_are_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text('if x; then A=(--spec a b); fi\npython3 train.py --lr 1e-6 "${A[@]}"\n')

    assert main(["explain-flags", str(path)]) == 1

    assert 'not answered: the flags in "${A[@]}"; give what' in capsys.readouterr().out


def test_a_record_is_not_met_by_a_script_that_hides_flags_in_a_list() -> None:
    hides = LaunchScript(
        Path("run.sh"), "train", (Argument("--lr"), Argument("1"), Argument("$A", False, True))
    )
    assert not agrees(hides, ["--lr", "1", "--swiglu"], "/")
    assert agrees(hides, ["--lr", "1"], "/")
