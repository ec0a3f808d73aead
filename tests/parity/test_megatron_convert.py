"""Weights go from one form into another bit for bit, in little memory, and nothing is lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.cli.main import main
from agentrl.config.torch_dist import read_header
from agentrl.models.registry import families, open_model
from agentrl.models.shapes import shapes_of

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).resolve().parents[2]
NAMES = [name for name, family in families().items() if family.tiny]


def weights(model: Path) -> dict[str, torch.Tensor]:
    return {k: t for path in model.glob("*.safetensors") for k, t in load_file(path).items()}


def are_equal(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(
        ours[k].dtype == theirs[k].dtype and torch.equal(ours[k], theirs[k]) for k in ours
    )


def run(*words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@pytest.mark.parametrize("family", NAMES)
def test_a_model_comes_back_from_megatrons_format_bit_for_bit(
    family: str, hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    model = hf_model(family).directory
    assert main(["convert", str(model), str(tmp_path / "dist")]) == 0
    assert (tmp_path / "dist" / "latest_checkpointed_iteration.txt").read_text() == "release"
    back = ["convert", str(tmp_path / "dist"), str(tmp_path / "hf"), "--hf-checkpoint", str(model)]
    assert main(back) == 0
    assert are_equal(tmp_path / "hf", model)


@pytest.mark.parametrize("family", ["qwen3", "qwen3-5-vl", "qwen3-5-moe-vl", "deepseek-v3"])
def test_a_model_in_bfloat16_stays_so_in_files_as_small_as_asked(
    family: str, hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    model, dist = tmp_path / "model", tmp_path / "dist"
    model.mkdir()
    source = hf_model(family).directory
    (model / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file({k: t.bfloat16() for k, t in weights(source).items()}, model / "model.safetensors")
    assert main(["convert", str(model), str(dist)]) == 0
    back = ["convert", str(dist), str(tmp_path / "hf"), "--hf-checkpoint", str(model)]
    assert main([*back, "--chunk-size", "9000", "--vocab-size", "96"]) == 0
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 4
    assert are_equal(tmp_path / "hf", model)


@pytest.mark.parametrize("family", ["qwen3-5-vl", "qwen3-next", "deepseek-v3"])
def test_each_tensor_of_a_mixed_model_keeps_its_type(
    family: str, hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    model, dist, again = (tmp_path / name for name in ("model", "dist", "again"))
    model.mkdir()
    source = hf_model(family).directory
    (model / "config.json").write_bytes((source / "config.json").read_bytes())
    wide = ("A_log", "linear_attn.norm.weight", "e_score_correction_bias", "lm_head.weight")
    types = {True: torch.float32, False: torch.bfloat16}
    mixed = {k: t.to(types[k.endswith(wide)]) for k, t in weights(source).items()}
    halves = {"model.norm.weight", "model.language_model.norm.weight"} & mixed.keys()
    mixed |= {k: mixed[k].half() for k in halves}
    assert len({t.dtype for t in mixed.values()}) == 3
    save_file(mixed, model / "model.safetensors")
    assert main(["convert", str(model), str(dist)]) == 0
    home = ["--hf-checkpoint", str(model)]
    assert main(["convert", str(dist), str(again), "--to", "torch_dist", *home]) == 0
    for number, written in enumerate((dist, again)):
        assert main(["convert", str(written), str(tmp_path / f"hf{number}"), *home]) == 0
        assert are_equal(tmp_path / f"hf{number}", model)
        assert json.loads((tmp_path / f"hf{number}/config.json").read_text())["dtype"] == "bfloat16"


def test_a_checkpoint_says_the_arguments_that_slimes_converter_and_megatron_read(
    hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    assert main(["convert", str(hf_model("qwen3-moe").directory), str(tmp_path / "dist")]) == 0
    common = torch.load(tmp_path / "dist/release/common.pt", weights_only=False)
    said = vars(common["args"])
    tiny = families()["qwen3-moe"].tiny
    assert said["num_layers"] == tiny["num_hidden_layers"]
    assert said["num_experts"] == tiny["num_experts"]
    assert (said["qk_layernorm"], said["swiglu"], said["normalization"]) == (True, True, "RMSNorm")
    told = read_header(tmp_path / "dist").arguments  # through the restricted reader
    assert told == {name: value for name, value in said.items() if name != "moe_layer_freq"}


def test_what_is_there_is_replaced_only_by_force(
    hf_model: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(hf_model("qwen3").directory)
    (tmp_path / "mine").write_text("mine")
    words = ["convert", model, str(tmp_path)]
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("latest_checkpointed_iteration.txt", "release")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine"], "/mine cannot be a folder: "),
        (["mine/dist"], "/mine/dist cannot be a folder: "),
        (["."], ". is the working directory or a folder around it"),
        ([".."], ".. is the working directory or a folder around it"),
        (["empty/.."], "empty/.. is the working directory or a folder around it"),
        (["dist", "--chunk-size", "-1"], "--chunk-size -1: a file has 1 byte or more"),
        (["dist", "--mtp"], "--mtp: the tensors of its layers of multi-token prediction are not"),
    ],
)
def test_where_nothing_can_be_written_is_said_and_all_stays_as_it_was(
    words: list[str],
    said: str,
    hf_model: Callable[[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "mine").write_text("mine")
    target = str(tmp_path / words[0]) if words[0].startswith("mine") else words[0]
    model = str(hf_model("qwen3-5-vl").directory)
    assert main(["convert", model, target, "--force", *words[1:]]) == 2
    assert said in capsys.readouterr().err
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["here", "here/empty", "mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--hf-checkpoint is missing"),
        (["--hf-checkpoint", "MODEL", "--vocab-size", "97"], "config.json of"),
        (["--hf-checkpoint", "OTHER"], "is of another model"),
        (["--hf-checkpoint", "MODEL", "--to", "pickle"], "choose from hf, torch_dist"),
    ],
)
def test_what_cannot_be_converted_is_said_and_nothing_is_left(
    words: list[str],
    said: str,
    hf_model: Callable[[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"MODEL": "qwen3", "OTHER": "qwen2"}
    named = [str(hf_model(places[w]).directory) if w in places else w for w in words]
    assert main(["convert", str(hf_model("qwen3").directory), str(tmp_path / "dist")]) == 0
    try:
        code = main(["convert", str(tmp_path / "dist"), str(tmp_path / "hf"), *named])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_the_tools_that_slimes_users_type_convert_there_and_back(
    hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    model, dist, back = hf_model("qwen3").directory, tmp_path / "dist", tmp_path / "hf"
    flags = "--swiglu --num-layers 2 --hidden-size 32 --qk-layernorm --rotary-base 50000"
    there = [ROOT / "tools/convert_hf_to_torch_dist.py", *flags.split(), "--hf-checkpoint", model]
    done = run(*there, "--save", dist)
    assert done.returncode == 0, done.stderr
    assert run(*there, "--save", tmp_path / "rank1", RANK="1").returncode == 0
    assert not (tmp_path / "rank1").exists()
    wrong = run(*there, "--num-layers", "3", "--save", tmp_path / "wrong")
    assert (wrong.returncode, "--num-layers is 3" in wrong.stderr) == (2, True), wrong.stderr
    home = ["--input-dir", dist / "release", "--output-dir", back, "--origin-hf-dir", model]
    tool = ROOT / "tools/convert_torch_dist_to_hf.py"
    done = run(tool, *home, "--vocab-size", "96", "--model-name", "qwen3")
    assert done.returncode == 0, done.stderr
    assert are_equal(back, model)
    assert run(tool, *home).returncode == 2
    done = run(tool, *home, "-f", "-a")
    assert (done.returncode, "is refused, not completed" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model-name", "qwen3"], "--origin-hf-dir is missing: name the Hugging Face model"),
        (["--origin-hf-dir", "BARE", "-a"], "/bare has no weights that could be added"),
    ],
)
def test_the_tool_for_slimes_users_says_what_it_lacks(
    words: list[str], said: str, hf_model: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    config = hf_model("qwen3").directory / "config.json"
    (tmp_path / "bare" / "config.json").write_bytes(config.read_bytes())
    words = [word.replace("BARE", str(tmp_path / "bare")) for word in words]
    places = ["--input-dir", tmp_path / "dist", "--output-dir", tmp_path / "hf"]
    done = run(ROOT / "tools/convert_torch_dist_to_hf.py", *places, *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


#: Settings of glibc's allocator under which memory that is free goes back to the system: without
#: them a heap keeps up to 100 MB, and what is measured is the order of what came before.
GIVES_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


def zeros(config: dict[str, Any], directory: Path) -> int:
    """A model of zeros, a file for each of its tensors; the bytes of the largest."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    model = open_model(directory, None)
    places, largest = {}, 0
    for index, (name, shape) in enumerate(shapes_of(model).items()):
        places[name] = f"model-{index}.safetensors"
        save_file({name: torch.zeros(shape)}, directory / places[name])
        largest = max(largest, 4 * prod(shape))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return largest


def test_a_model_passes_in_the_memory_of_its_largest_tensors(hf_model: Any, tmp_path: Path) -> None:
    """Both ways, and from one checkpoint into another."""
    config = {
        **json.loads((hf_model("qwen3").directory / "config.json").read_text()),
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 20,
        "vocab_size": 8192,
    }
    largest = zeros(config, tmp_path / "large")
    zeros({**config, "num_hidden_layers": 1}, tmp_path / "small")
    size = sum(file.stat().st_size for file in (tmp_path / "large").glob("*.safetensors"))
    folder = tmp_path / "converted"
    folder.mkdir()
    places = (tmp_path / "small", tmp_path / "large", folder)
    program = Path(__file__).with_name("little_memory.py")
    done = run(program, *places, largest, **GIVES_BACK)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) < 6 * largest < size / 2, done.stdout
    assert len(list((folder / "large-hf").glob("*.safetensors"))) > 5
