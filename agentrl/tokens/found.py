"""The chat format of a model for which nobody names one: the model's own files say it.

1. the format by hand that writes a prompt as its chat template does (`spoken_format`); of several,
   one that members of its family speak
2. the template itself, where it is shown to append only (`load_template`)
3. the format by hand that writes all of a prompt but its end, where the template opens a thought
4. none: refused, with the flag to give and its values
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.formats.load import opened_formats, spoken_format
from agentrl.tokens.templates.load import OWN, OwnTemplate, load_template
from agentrl.tokens.vocab import Vocab

__all__ = ["FoundFormat", "find_format", "others_than"]

#: Of several formats that begin a dialogue alike: the one without anything besides.
_PLAINEST = "qwen"
_SHOWN = "the files of the model show it"


class FoundFormat(msgspec.Struct, frozen=True):
    """A chat format by its name, or the template that is one. `why`: it and its reason, a line."""

    wanted: str | OwnTemplate
    why: str


def find_format(
    model_dir: str | Path, usual: Sequence[str] = (), *, is_one_turn: bool = False
) -> FoundFormat:
    """The chat format of the model at `model_dir`. `usual`: those that members of its family speak.
    `is_one_turn`: see `OwnTemplate`.

    Raises ConfigError where the files say none, with what to give.
    """
    model_dir = Path(model_dir)
    vocab = Vocab.from_file(model_dir)
    spoken = spoken_format(usual, model_dir, others=others_than(usual), vocab=vocab)
    if spoken is not None and not spoken.rest:
        return FoundFormat(spoken.name, f"chat format {spoken.name}: {_SHOWN}")
    own = OwnTemplate(OWN, is_one_turn=is_one_turn)
    try:
        load_template(own, model_dir)
    except ConfigError as error:
        if spoken is None:
            raise ConfigError(_refused(model_dir, vocab, str(error))) from error
        why = f"{_SHOWN}, but for the end of a prompt: {spoken.rest!r} is left out"
        return FoundFormat(spoken.name, f"chat format {spoken.name}: {why}")
    why = f"no --chat-format writes turns as the chat template of {model_dir} does"
    return FoundFormat(own, f"--chat-template {OWN}: {why}")


def others_than(usual: Sequence[str]) -> list[str]:
    """The formats that ship beside `usual`, the plainest first."""
    names = [_PLAINEST, *(name for name in CHAT_FORMATS.places if name != _PLAINEST)]
    return [name for name in names if name not in usual]


def _refused(model_dir: Path, vocab: Vocab, why: str) -> str:
    """Names the formats that the tokenizer has the words of, the plainest first."""
    able = [*opened_formats(others_than(()), model_dir, vocab)]
    fitting = f"--chat-format {' or '.join(able)}" if able else "a --chat-format of yours"
    return (
        f"no --chat-format is known to be that of {model_dir}, nor is its own chat template one: "
        f"{why.rstrip('.')}. Give {fitting}, or another template with --chat-template FILE"
    )
