"""A model's config.json has one reader: whoever asks hears the same of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.spec import ModelFacts, read_model_facts
from agentrl.config.model import read_model
from agentrl.errors import ConfigError
from agentrl.model_dir import decoder_config, quantization, read_config
from agentrl.models.registry import open_model

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
NAMES = {"architectures": ["Qwen3ForCausalLM"]}

READERS: dict[str, Callable[[Path], Any]] = {
    "configuration": read_model,
    "cluster": lambda directory: read_model_facts(directory, None),
    "learner": lambda directory: open_model(directory, None),
}


def written(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_sizes_may_be_nested_as_those_of_the_text(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    flat = written(tmp_path / "flat", NAMES | SIZES)
    nested = written(tmp_path / "nested", NAMES | {"text_config": SIZES | {"architectures": []}})
    assert read(nested) == read(flat)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "{dir} is no Hugging Face model directory: it has no config.json"),
        ("[]", "{dir}/config.json is not a JSON object: "),
        ('{"a": ' + "[" * 100_000, "{dir}/config.json is not a JSON object: "),
        ('{"text_config": 3}', "{dir}/config.json: text_config must be an object and "),
        ('{"architectures": "Qwen3"}', "{dir}/config.json: text_config must be an object and "),
    ],
)
def test_what_cannot_be_read_is_said_in_the_same_words(
    read: Callable[[Path], Any], text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(tmp_path)
    assert str(refused.value).startswith(f"--hf-checkpoint {said.format(dir=tmp_path)}")


@pytest.mark.parametrize("read", [read_config, decoder_config, quantization])
@pytest.mark.parametrize("text", [None, "[]"])
def test_what_cannot_be_read_is_said_of_the_flag_that_names_it(
    read: Callable[..., Any], text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"--ref-load {tmp_path}"):
        read(tmp_path, "--ref-load")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_folder_and_a_fifo_are_told_apart(read: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path / 'none'}"):
        read(tmp_path / "none")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"its config.json is a FIFO"):
        read(tmp_path)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    written(tmp_path, NAMES | SIZES)
    assert read_model_facts(tmp_path, None) == ModelFacts(512, 256)
    written(tmp_path, NAMES | SIZES | {"vocab_size": 1024})
    assert read_model_facts(tmp_path, 100) == ModelFacts(1024, 100)
