"""Model directories whose files contradict each other, told before anything starts."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import agentrl.envs.search_r1
from agentrl.cli.train import main
from agentrl.config.model import read_model
from agentrl.errors import ConfigError

pytestmark = pytest.mark.slow

SHIPPED = Path(agentrl.envs.search_r1.__file__).parent / "model"
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model of the default job."""
    copy = tmp_path / "model"
    shutil.copytree(SHIPPED, copy)
    return copy


def dry_run(model: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    argv = ["--preset", "search-r1-local", "--hf-checkpoint", str(model), "--dry-run"]
    code = main(argv, "train_async")
    said = capsys.readouterr()
    return code, said.out + said.err


def change(model: Path, **values: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"vocab_size": -1}, "vocab_size is -1; it must be a whole number from 1 on"),
        ({"vocab_size": 10}, "vocab_size is 10, and the ids of its tokenizer.json go up to 20"),
        ({"vocab_size": 9999}, "vocab_size is 9999, and that of its weights is 20"),
        ({"hidden_size": "big"}, "hidden_size is 'big'; it must be a whole number"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0; it must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be"),
        ({"num_attention_heads": True}, "num_attention_heads is True; it must be"),
        ({"num_hidden_layers": 99}, "num_hidden_layers is 99, and its weights have 3 layers"),
        ({"num_attention_heads": 7, "head_dim": None}, "by num_attention_heads 7"),
        ({"num_key_value_heads": 3}, "cannot be divided by num_key_value_heads 3"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0; it must be"),
        ({"text_config": 5}, "text_config must be an object"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures a list of names"),
    ],
)
def test_an_absurd_config_is_refused_with_key_and_value(
    model: Path, values: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model, **values)
    code, output = dry_run(model, capsys)
    assert (code, "Traceback" in output) == (2, False)
    assert said in output
    assert str(model / "config.json") in output


@pytest.mark.parametrize(
    "values",
    [
        # layers that predict further tokens lie behind the decoder's (DeepSeek-V3, GLM-4.5)
        {"num_hidden_layers": 2, "num_nextn_predict_layers": 1},
        {"num_hidden_layers": 3, "num_nextn_predict_layers": 1},
        # latent attention has widths of its own for a head (GLM-4.7-Flash: 2048 over 20 heads)
        {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None, "kv_lora_rank": 8},
    ],
)
def test_a_config_of_another_family_is_not_absurd(model: Path, values: dict[str, Any]) -> None:
    change(model, **values)
    read_model(model)


def test_all_that_is_absurd_is_told_at_once(model: Path) -> None:
    change(model, vocab_size=-1, hidden_size="big")
    with pytest.raises(ConfigError, match=r"vocab_size is -1.*; hidden_size is 'big'"):
        read_model(model)


def header(model: Path) -> tuple[dict[str, Any], bytes]:
    data = (model / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(values: object, tensors: bytes) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def damaged(model: Path) -> dict[str, tuple[bytes, str]]:
    data = (model / WEIGHTS).read_bytes()
    tensors, body = header(model)
    bad_shape = {**tensors, "model.norm.weight": {**tensors["model.norm.weight"], "shape": [-1]}}
    return {
        "empty": (b"", "is empty"),
        "five bytes": (data[:5], "is cut short"),
        "half of the header": (data[:300], "is cut short: it has 300 bytes and its header alone"),
        "half of the tensors": (data[: len(data) // 2], "is cut short: "),
        "a byte too many": (data + b"x", "has 1 bytes behind its last tensor"),
        "a huge header": (b"\xff" * 7 + b"\x00{}", "its header would have 72057594037927935 bytes"),
        "a pickle": (pickle.dumps({"a": [1.0] * 99}), "is no safetensors file but a pickle"),
        "torch.save": (b"PK\x03\x04" + bytes(99), "but what torch.save writes"),
        "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        "no JSON": (struct.pack("<Q", 3) + b"{a}", "its header is broken"),
        "a list": (with_header([], b""), "its header is broken"),
        "a tensor without shape": (with_header({"a": {}}, b""), "its header is broken"),
        "a negative shape": (with_header(bad_shape, body), "its header is broken"),
    }


@pytest.mark.parametrize("name", damaged(SHIPPED))
def test_damaged_weights_are_refused_by_name(
    model: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = damaged(SHIPPED)[name]
    (model / WEIGHTS).write_bytes(data)
    code, output = dry_run(model, capsys)
    assert (code, "Traceback" in output) == (2, False)
    assert f"{model / WEIGHTS} " in output
    assert said in output


def test_a_header_whose_length_begins_like_a_pickle_is_read(model: Path) -> None:
    values, tensors = header(model)
    values["__metadata__"] = {"padding": ""}
    short = len(json.dumps(values))
    values["__metadata__"]["padding"] = "x" * ((0x80 - short) % 256)
    (model / WEIGHTS).write_bytes(with_header(values, tensors))
    assert (model / WEIGHTS).read_bytes()[0] == 0x80
    assert read_model(model) == read_model(SHIPPED)


def test_shards_are_those_that_the_index_names(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(ConfigError, match=r"names 'one.safetensors', and there is no such file"):
        read_model(model)
    (model / WEIGHTS).rename(model / "one.safetensors")
    assert read_model(model) == read_model(SHIPPED)
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(ConfigError, match="no such file beside it"):
        read_model(model)
    index.write_text("{}")
    with pytest.raises(ConfigError, match="is not an index of weights"):
        read_model(model)


def test_a_dry_run_of_a_model_without_weights_says_that_they_were_not_checked(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / WEIGHTS).unlink()
    code, output = dry_run(model, capsys)
    assert code == 0
    assert f"--hf-checkpoint {model} has neither model.safetensors nor" in output
    assert "weights not checked, and a run needs them" in output


def test_a_dry_run_goes_by_the_config_alone(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in model.iterdir():
        if path.name != "config.json":
            path.unlink()
    code, output = dry_run(model, capsys)
    assert code == 0, output
    assert "weights not checked, and a run needs them" in output


def test_a_run_without_weights_is_refused(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (model / WEIGHTS).unlink()
    argv = ["--preset", "search-r1-local", "--hf-checkpoint", str(model)]
    assert main(argv, "train_async") == 2
    assert "there are no weights to begin with" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_nothing_waits_for_a_fifo_in_a_models_folder(model: Path, name: str) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(ConfigError, match="is a FIFO"):
        read_model(model)
