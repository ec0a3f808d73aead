"""What a Hugging Face model directory says about its model: `config.json` and file headers.

Enough to compare lengths and to estimate memory; what the learner and the engines need of it they
read themselves. Refused by key and value: sizes that no model can have, that contradict each other,
that its tokenizer goes beyond, or that its weights have not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.weights import Shapes, num_in_experts, num_layers, num_parameters, read_shapes
from agentrl.errors import ConfigError
from agentrl.model_dir import CONFIG, TOKENIZER, decoder_config
from agentrl.paths import kind_of

__all__ = ["ModelSummary", "read_model"]

_COUNTS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)


class ModelSummary(msgspec.Struct, frozen=True):
    """A model's sizes; None where the directory does not say.

    `kv_values_per_token` is how many numbers the key-value cache holds for one token.
    """

    architecture: str
    max_context: int | None
    num_parameters: int | None
    kv_values_per_token: int | None
    vocab_size: int | None = None
    num_in_experts: int = 0


def read_model(directory: Path) -> ModelSummary:
    """The sizes of the model in `directory`. Raises ConfigError when it is no model directory, or
    one whose files contradict each other; one without weights passes."""
    text = decoder_config(directory)
    shapes = read_shapes(directory)
    defects = list(_impossible(text))
    defects = defects or [*_beyond(text, directory), *_unlike(text, shapes)]
    if defects:
        raise ConfigError(f"--hf-checkpoint {directory / CONFIG}: {'; '.join(defects)}")
    return ModelSummary(
        architecture=", ".join(map(str, text["architectures"])) or "unknown",
        max_context=text.get("max_position_embeddings"),
        num_parameters=num_parameters(shapes),
        kv_values_per_token=_kv_values(text),
        vocab_size=text.get("vocab_size"),
        num_in_experts=num_in_experts(shapes),
    )


def _impossible(text: dict[str, Any]) -> Iterator[str]:
    """Values that are no sizes; sizes that cannot be divided as they must be."""
    wrong = False
    for key in _COUNTS:
        value = text.get(key)
        if value is not None and (type(value) is not int or value < 1):
            wrong = True
            yield f"{key} is {value!r:.40}; it must be a whole number from 1 on"
    if wrong:
        return
    heads, groups = text.get("num_attention_heads"), text.get("num_key_value_heads")
    hidden = text.get("hidden_size")
    has_widths = text.get("head_dim") or text.get("kv_lora_rank")  # latent attention has its own
    if heads and hidden and not has_widths and hidden % heads:
        yield f"hidden_size {hidden} cannot be divided by num_attention_heads {heads}"
    if heads and groups and heads % groups:
        yield f"num_attention_heads {heads} cannot be divided by num_key_value_heads {groups}"


def _beyond(text: dict[str, Any], directory: Path) -> Iterator[str]:
    """Ids that the tokenizer gives and the model has no embedding for."""
    vocabulary, ids = text.get("vocab_size"), _num_ids(directory / TOKENIZER)
    if vocabulary is not None and ids is not None and ids > vocabulary:
        yield f"vocab_size is {vocabulary}, and the ids of its {TOKENIZER} go up to {ids - 1}"


def _unlike(text: dict[str, Any], shapes: Shapes) -> Iterator[str]:
    """What the weights are otherwise."""
    layers, found = text.get("num_hidden_layers"), num_layers(shapes)
    further = text.get("num_nextn_predict_layers") or 0  # behind the decoder's, if they are there
    if layers is not None and found and found not in (layers, layers + further):
        yield f"num_hidden_layers is {layers}, and its weights have {found} layers"
    names = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
    embedding = next((shapes[name] for name in names if name in shapes), ())
    for key, size in zip(("vocab_size", "hidden_size"), embedding, strict=False):
        if text.get(key, size) != size:
            yield f"{key} is {text[key]}, and that of its weights is {size}"


class _Added(msgspec.Struct):
    id: int


class _Tokenizer(msgspec.Struct):
    model: dict[str, Any] = {}
    added_tokens: list[_Added] = []


def _num_ids(path: Path) -> int | None:
    """One more than the greatest id of a tokenizer; None where that is not known here."""
    if kind_of(path) != "a file":
        return None
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None  # whoever opens it says what is wrong with it
    vocabulary = tokenizer.model.get("vocab")
    ids = [token.id for token in tokenizer.added_tokens]
    if isinstance(vocabulary, dict):
        ids += [value for value in vocabulary.values() if isinstance(value, int)]
    elif isinstance(vocabulary, list):
        ids.append(len(vocabulary) - 1)
    return max(ids, default=-1) + 1 or None


def _kv_values(text: dict[str, Any]) -> int | None:
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    hidden = text.get("hidden_size")
    if layers is None or heads is None or hidden is None:
        return None
    groups = text.get("num_key_value_heads") or heads
    return int(2 * layers * groups * (text.get("head_dim") or hidden // heads))
