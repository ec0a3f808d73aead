"""What a Hugging Face model directory says about its model: `config.json` and file headers.

Enough to compare lengths and to estimate memory; what the learner and the engines need of it they
read themselves.
"""

import math
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError

__all__ = ["ModelSummary", "read_model"]


class ModelSummary(msgspec.Struct, frozen=True):
    """A model's sizes; None where the directory does not say.

    `kv_values_per_token` is how many numbers the key-value cache holds for one token.
    """

    architecture: str
    max_context: int | None
    num_parameters: int | None
    kv_values_per_token: int | None
    vocab_size: int | None = None


def read_model(directory: Path) -> ModelSummary:
    """The sizes of the model in `directory`. Raises ConfigError when it is no model directory."""
    path = directory / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError:
        where = directory.resolve()
        lack = "it has no readable config.json" if where.is_dir() else f"there is no folder {where}"
        raise ConfigError(
            f"--hf-checkpoint {directory} is no Hugging Face model directory: {lack}"
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--hf-checkpoint: {path} is not a JSON object: {error}") from None
    text = config.get("text_config") or config
    return ModelSummary(
        architecture=", ".join(config.get("architectures") or ["unknown"]),
        max_context=_number(text, "max_position_embeddings"),
        num_parameters=_num_parameters(directory),
        kv_values_per_token=_kv_values(text),
        vocab_size=_number(text, "vocab_size"),
    )


def _number(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kv_values(config: dict[str, Any]) -> int | None:
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    hidden = _number(config, "hidden_size")
    if layers is None or heads is None or hidden is None:
        return None
    groups = _number(config, "num_key_value_heads") or heads
    return 2 * layers * groups * (_number(config, "head_dim") or hidden // heads)


def _num_parameters(directory: Path) -> int | None:
    """Numbers in all safetensors files, from their headers (8 bytes of length, then JSON)."""
    total = 0
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
        except (OSError, msgspec.MsgspecError, OverflowError, MemoryError):
            return None
        total += sum(math.prod(t["shape"]) for n, t in header.items() if n != "__metadata__")
    return total or None
