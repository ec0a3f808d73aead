"""From a model directory to the chat format that its chat template describes."""

import json
import re
from pathlib import Path
from typing import Any, Protocol

from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tokens.formats.qwen3 import Qwen3Format, StrippedQwen3Format
from agentrl.tokens.formats.tags import TagsFormat
from agentrl.tokens.vocab import Vocab

__all__ = ["FORMATS", "MakesFormat", "load_format", "make_format"]


class MakesFormat(Protocol):
    """The class of a chat format. `default_system`: the system message that the model's template
    has where a dialogue brings none."""

    def __call__(
        self, vocab: Vocab, *, tools_in_prompt: bool, default_system: str | None
    ) -> ChatFormat: ...


FORMATS: dict[str, type[QwenFormat | TagsFormat]] = {
    "qwen": QwenFormat,
    "qwen3": Qwen3Format,
    "qwen3-stripped": StrippedQwen3Format,
    "tags": TagsFormat,
}
#: Default system messages of Qwen's templates, the longer one first.
_DEFAULT_SYSTEMS = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
)


def load_format(name: str, model_dir: str | Path, *, max_tokens: int | None = None) -> ChatFormat:
    """agentrl's own chat format `name` for the model at `model_dir`. Raises as `make_format`."""
    if name not in FORMATS:
        raise ConfigError(f"there is no chat format {name!r}; there are {', '.join(FORMATS)}")
    return make_format(FORMATS[name], name, model_dir, max_tokens=max_tokens)


def make_format(
    made: MakesFormat, name: str, model_dir: str | Path, *, max_tokens: int | None = None
) -> ChatFormat:
    """A chat format for the model at `model_dir`; `name` is what messages call it; `max_tokens`:
    see `Vocab`.

    Reads `tokenizer.json` and the chat template (of `chat_template.jinja`, or else of
    `tokenizer_config.json`). A template that never mentions `tools` does not describe them to its
    model: nor does the format. Raises `ConfigError` when a file is missing, or when the template of
    a format that is ChatML is none of ChatML; any other needs no template.
    """
    model_dir = Path(model_dir)
    vocab = Vocab.from_file(model_dir, max_tokens=max_tokens)
    is_chatml = isinstance(made, type) and issubclass(made, ChatML)
    template = _read_template(model_dir) if is_chatml or _has_template(model_dir) else ""
    if is_chatml and "<|im_start|>" not in template:
        raise ConfigError(f"the chat template of {model_dir} is not of the chat format {name}")
    return made(
        vocab,
        tools_in_prompt=re.search(r"\btools\b", template) is not None,
        default_system=next((text for text in _DEFAULT_SYSTEMS if text in template), None),
    )


def _has_template(model_dir: Path) -> bool:
    try:
        return bool(_read_template(model_dir))
    except ConfigError:
        return False


def _read_template(model_dir: Path) -> str:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = model_dir / "tokenizer_config.json"
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read the chat template in {path}: {error}") from error
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    if not isinstance(found, str):
        raise ConfigError(f"{model_dir} has no chat template; agentrl cannot tell its chat format")
    return found
