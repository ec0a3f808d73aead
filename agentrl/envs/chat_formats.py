"""Chat formats as a run takes them: one that is not agentrl's own is tried first."""

from pathlib import Path

from agentrl.config.mixture import ways_of
from agentrl.config.run import RunConfig
from agentrl.envs.check.formats import try_format
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.templates.load import OwnTemplate, load_template

__all__ = ["chat_format_of", "open_chat_format"]


def chat_format_of(config: RunConfig) -> str | OwnTemplate:
    """How a run writes turns: the name of its format, or the template that is its format."""
    if config.chat_template is None:
        return config.chat_format
    ways = [way.env for way in ways_of(config)]
    is_one_turn = set(ways) == {"single-turn"} and not config.is_supervised
    return OwnTemplate(config.chat_template, config.apply_chat_template_kwargs, is_one_turn)


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
