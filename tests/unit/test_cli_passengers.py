"""Tensors that no layer here has go into every model that is saved, which is not quantized: where
they are, a dry run and a conversion refuse it before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli.train import main as train
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.models.registry import families, open_model
from agentrl.models.shapes import shapes_of, wholes_of
from scripts.header_only import write_model, write_torch_dist

DEFAULT_JOB = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
ROWS = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
EYES, MTP = "model.visual.blocks.0.attn.proj.weight", "mtp.layers.0.mlp.down_proj.weight"
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def imitated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    """A dry run of imitation with a quantized model that sees as --hf-checkpoint, and its weights
    in Megatron's format as --load: what it says. Tensors have the types that are named."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT_JOB / name, model)
    config = {**families()["qwen3-5-vl"].tiny, "vocab_size": 2048}
    config |= {"max_position_embeddings": 1024, "quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    described = open_model(model, None)
    write_torch_dist(tmp_path / "dist", wholes_of(described))

    def say(**types: str) -> tuple[int, str]:
        write_model(model, shapes_of(described), "F8_E4M3")
        add(model / "model.safetensors", {EYES: types["eyes"], MTP: types["mtp"]})
        flags = ["--hf-checkpoint", str(model), "--load", "dist", "--loss-type", "sft_loss"]
        flags += ["--prompt-data", "rows.jsonl", "--input-key", "messages", "--device", "cpu"]
        return train(
            [*flags, "--chat-format", "qwen", "--dry-run"], "train_async"
        ), capsys.readouterr().err

    return say


def add(path: Path, types: dict[str, str]) -> None:
    """A tensor of each name and type behind those in a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    for name, kind in types.items():
        header[name] = {"dtype": kind, "shape": [4], "data_offsets": [len(rest), len(rest) + 8]}
        rest += bytes(8)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)


def test_imitation_takes_a_quantized_folder_whose_own_tensors_are_not(imitated: Say) -> None:
    code, said = imitated(eyes="BF16", mtp="BF16")
    assert code == 0, said


def test_a_tensor_that_would_be_saved_quantized_is_refused_by_name(imitated: Say) -> None:
    code, said = imitated(eyes="BF16", mtp="F8_E4M3")
    assert code == 2
    assert f"--hf-checkpoint {Path.cwd() / 'model'} has {MTP} in F8_E4M3: no layer here" in said
    assert "name the same model in F64, F32, F16, BF16 in its place" in said
    assert EYES not in said
