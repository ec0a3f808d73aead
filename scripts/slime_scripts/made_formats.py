"""Which chat format each model that slime's scripts name has without a flag, where nobody answers a
turn: lines of `docs/from-slime.md`."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.models.registry import open_model
from agentrl.tokens.found import find_format
from agentrl.tokens.templates.load import OwnTemplate
from scripts.pages import rows
from scripts.slime_scripts.made_ground import Ground

__all__ = ["format_of", "table"]


def format_of(checkpoint: str) -> str:
    """The flag that says what is found for a model, by the name of its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        _, place = Ground(Path(folder)).placed(["--hf-checkpoint", checkpoint])
        usual = open_model(Path(place), None).family.chat_formats
        wanted = find_format(place, usual, is_one_turn=True).wanted
    is_own = isinstance(wanted, OwnTemplate)
    return "--chat-template own" if is_own else f"--chat-format {wanted}"


def table(checkpoints: Iterable[str]) -> Iterator[str]:
    """The models of each format that is found."""
    models: dict[str, dict[str, None]] = {}
    for checkpoint in sorted(set(checkpoints)):
        name = f"`{Path(checkpoint).name}`"
        models.setdefault(f"`{format_of(checkpoint)}`", {})[name] = None
    named = sorted((found, ", ".join(sorted(names))) for found, names in models.items())
    yield from rows(("found", "models that scripts name"), named)
