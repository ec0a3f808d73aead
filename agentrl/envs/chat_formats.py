"""Chat formats as a run takes them: found from its model where none is named; one that is not
agentrl's own is tried first."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.config.mixture import ways_of
from agentrl.config.run import RunConfig
from agentrl.envs.check.formats import try_format
from agentrl.errors import ConfigError
from agentrl.model_dir import CONFIG, TOKENIZER
from agentrl.models.registry import open_model
from agentrl.paths import kind_of
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format, spoken_format
from agentrl.tokens.found import FoundFormat, find_format, others_than
from agentrl.tokens.templates.load import OwnTemplate, load_template

__all__ = ["chat_format_of", "open_chat_format", "with_chat_format"]


def chat_format_of(config: RunConfig, model_dir: Path | None = None) -> str | OwnTemplate:
    """How a run writes turns: the name of its format, or the template that is its format. Where it
    names neither, its model says it, which may lie at `model_dir`; raises ConfigError where that
    says none."""
    if config.chat_template is not None:
        return OwnTemplate(
            config.chat_template, config.apply_chat_template_kwargs, _is_one_turn(config)
        )
    if config.chat_format is not None:
        return config.chat_format
    return _found(config, model_dir or _place(config)).wanted


def with_chat_format(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """`config` with the format that its model says, where it names none: that is what is stored
    with the run. A line says which it is and why, or that the one it names is another than the
    model's. Left as it is where the model says none, or is not there: the checks say so.
    """
    place = _place(config)
    if config.chat_template is not None:
        return config, []
    if any(kind_of(place / name) != "a file" for name in (CONFIG, TOKENIZER)):
        return config, []
    if config.chat_format is not None:
        return config, _on_another(config.chat_format, _usual(config, place), place)
    try:
        found = _found(config, place)
    except ConfigError:
        return config, []
    own = found.wanted if isinstance(found.wanted, OwnTemplate) else None
    field = {"chat_format": found.wanted} if own is None else {"chat_template": own.place}
    return msgspec.structs.replace(config, **field), [found.why]


def open_chat_format(
    wanted: str | OwnTemplate, model_dir: str | Path, *, max_tokens: int | None = None
) -> ChatFormat:
    """`load_format` of a name, and `try_format` for a format of somebody else's; `load_template` of
    a template, which is tried where nobody bounds it, at the start. Raises as these."""
    if isinstance(wanted, OwnTemplate):
        made = load_template(wanted, model_dir, max_tokens=max_tokens)
        if max_tokens is None and not made.lacks_calls and not wanted.is_one_turn:
            try_format(made, f"of {made.template.place}")
        return made
    chat = load_format(wanted, model_dir, max_tokens=max_tokens)
    if wanted not in CHAT_FORMATS.places:
        try_format(chat, wanted)
    return chat


def _is_one_turn(config: RunConfig) -> bool:
    ways = [way.env for way in ways_of(config)]
    return set(ways) == {"single-turn"} and config.has_env


def _place(config: RunConfig) -> Path:
    return Path(str(config.hf_checkpoint))


def _found(config: RunConfig, model_dir: Path) -> FoundFormat:
    return find_format(model_dir, _usual(config, model_dir), is_one_turn=_is_one_turn(config))


def _usual(config: RunConfig, model_dir: Path) -> Sequence[str]:
    """The formats that members of the model's family speak; none of a model that is refused."""
    try:
        described = open_model(model_dir, config.model_family)
    except ConfigError:
        return ()
    return described.family.chat_formats


def _on_another(written: str, usual: Sequence[str], place: Path) -> list[str]:
    """A note where a run names one of the formats that ship, and the files of its model show one
    that writes it in another way."""
    if written not in CHAT_FORMATS.places:
        return []
    spoken = spoken_format([written, *usual], place, others=others_than(usual))
    if spoken is None or spoken.name == written:
        return []
    speaks = f"{place} is instructed in --chat-format {spoken.name}"
    return [f"{speaks}; this run writes turns as {written} does"]
