"""From `--chat-template` and a model directory to a chat format that is shown to append only."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError
from agentrl.paths import kind_of
from agentrl.tokens.template import ChatTemplate, read_template, special_tokens
from agentrl.tokens.templates.chat import TemplateFormat
from agentrl.tokens.templates.proof import prove
from agentrl.tokens.vocab import Vocab

__all__ = ["OWN", "OwnTemplate", "load_template"]

#: The template that the model's directory has.
OWN = "own"


class OwnTemplate(msgspec.Struct, frozen=True):
    """A chat template that is to be the chat format. `place`: `own`, or a file. `given`: what it is
    given besides. `is_one_turn`: nobody answers a turn, so what follows one need not be shown."""

    place: str
    given: dict[str, Any] = {}
    is_one_turn: bool = False


def load_template(
    wanted: OwnTemplate, model_dir: str | Path, *, max_tokens: int | None = None
) -> TemplateFormat:
    """Its chat format for the model at `model_dir`; `max_tokens`: see `Vocab`.

    Raises `ConfigError` when there is none, when it goes beyond its sandbox or shows text otherwise
    than it is, and, with the difference, when it does not only append.
    """
    model_dir = Path(model_dir)
    tokens = special_tokens(model_dir)
    source, place = _read(wanted.place, model_dir)
    template = ChatTemplate(source, place=place, given={**tokens, **wanted.given})

    def made(most: int | None) -> TemplateFormat:
        vocab = Vocab.from_file(model_dir, max_tokens=most)
        return TemplateFormat(vocab, template, ends=_ends(model_dir, tokens, vocab))

    chat = made(None)  # what is shown may be longer than a turn of this run
    prove(chat, one_turn=wanted.is_one_turn)
    return chat if max_tokens is None else made(max_tokens)


def _read(place: str, model_dir: Path) -> tuple[str, str]:
    """The template, and what errors call it."""
    if place == OWN:
        return read_template(model_dir), f"the chat template of {model_dir}"
    kind = kind_of(Path(place).expanduser())
    if kind not in ("a file", "nothing"):  # nobody may ever write into a FIFO
        raise ConfigError(f"--chat-template {place} is {kind}; it wants {OWN} or a file")
    try:
        return Path(place).expanduser().read_text(encoding="utf-8"), f"the chat template {place}"
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read --chat-template {place}: {error}; it is {OWN} or a file"
        ) from error


def _ends(model_dir: Path, tokens: Mapping[str, str], vocab: Vocab) -> set[str]:
    """The tokens that end what the model generates, as its files say."""
    try:
        path = model_dir / "generation_config.json"
        found: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        found = None
    ids = found if isinstance(found, list) else [found]
    named = {text for text, id_ in vocab.control.items() if id_ in ids}
    return named | ({tokens["eos_token"]} if "eos_token" in tokens else set())
