"""A Hugging Face model directory: the one reader of its `config.json`.

What the numbers mean is for others to say: sizes for `config`, the architecture for the learner.
Read anew at each call, for `--save-hf` may write a directory again. Refused, for all in the same
words: what is no model directory, and a file that is no configuration.
"""

from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError
from agentrl.hub import advice
from agentrl.paths import kind_of

__all__ = ["CONFIG", "TOKENIZER", "decoder_config", "quantization", "read_config"]

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
#: The flag that names the model of a run.
MODEL = "--hf-checkpoint"


def read_config(directory: Path, flag: str = MODEL) -> dict[str, Any]:
    """The `config.json` of `directory` as it stands there. `flag`: what names the directory. Raises
    ConfigError in its name."""
    path = directory / CONFIG
    if (kind := kind_of(path)) != "a file":
        where = directory.resolve()
        lack = f"its {CONFIG} is {kind}" if kind != "nothing" else f"it has no {CONFIG}"
        if (folder := kind_of(where)) != "a directory":
            lack = f"it is {folder}"
            if folder == "nothing":
                lack = f"there is no folder {where}{advice(str(directory))}"
        raise ConfigError(f"{flag} {directory} is no Hugging Face model directory: {lack}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} {path} is not a JSON object: {error}") from None


def decoder_config(directory: Path, flag: str = MODEL) -> dict[str, Any]:
    """The same, with what it nests in `text_config` beside the rest: sizes stand at the top,
    whether or not the model reads more than text. `architectures` is a list, maybe empty."""
    config = read_config(directory, flag)
    text, names = config.get("text_config") or {}, config.get("architectures") or []
    if not isinstance(text, dict) or not isinstance(names, list):
        raise ConfigError(
            f"{flag} {directory / CONFIG}: text_config must be an object and "
            "architectures a list of names"
        )
    return config | text | _of_the_whole(config, text) | {"architectures": names}


def _of_the_whole(config: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """What transformers and SGLang take from beside `text_config` alone."""
    return {"tie_word_embeddings": config.get("tie_word_embeddings", False)} if text else {}


def quantization(directory: Path, flag: str = MODEL) -> str | None:
    """How the weights there are quantized, in the word of its `config.json`; None: not at all.
    Raises as `read_config`."""
    found = decoder_config(directory, flag).get("quantization_config")
    if not found:
        return None
    return str(found.get("quant_method", found)) if isinstance(found, dict) else str(found)
