"""Paths that name an iteration: `{rollout_id}` in them stands for its number, counted from 1.

They are templates of `str.format`, as slime's are: `{rollout_id:05d}` pads the number with zeros,
and `{{` is a brace. Refused is every other field, and a number that is not written in digits alone.
"""

import glob
import re
from pathlib import Path
from string import Formatter

from agentrl.errors import ConfigError

__all__ = [
    "RANK",
    "ROLLOUT_ID",
    "about_ranked",
    "about_template",
    "candidates",
    "is_numbered",
    "literal",
    "newest",
    "numbered",
    "pattern_of",
    "ranked",
]

#: How the number is written in a template.
ROLLOUT_ID = "{rollout_id}"
#: How a data-parallel rank of the learner is written, where each has a path of its own.
RANK = "{rank}"
_NAME = ROLLOUT_ID.strip("{}")
_SPEC = re.compile(r"(0\d{1,2})?d?")


def about_template(template: str) -> str:
    """What is wrong with it, in one line; nothing where it can be used."""
    braces = "write {{ and }} for braces of the path itself"
    try:
        for _, name, spec, conversion in Formatter().parse(template):
            if name not in (None, _NAME):
                return f"{{{name}}} is unknown; {ROLLOUT_ID} is the iteration's number; {braces}"
            if conversion or not _SPEC.fullmatch(spec or ""):
                return f"a number is written as {ROLLOUT_ID}, or with zeros as {{{_NAME}:05d}}"
    except ValueError as error:
        return f"it cannot be read: {error}; {braces}"
    return ""


def is_numbered(template: str) -> bool:
    """Whether the path is another one for each iteration."""
    return not about_template(template) and numbered(template, 1) != numbered(template, 2)


def numbered(template: str, number: int) -> Path:
    """The path of that iteration. Raises ConfigError for a template that cannot be used."""
    if wrong := about_template(template):
        raise ConfigError(f"{template}: {wrong}")
    return Path(template.format(**{_NAME: number}))


def about_ranked(template: str) -> str:
    """What is wrong with a path that may have `{rank}` in it as well."""
    return about_template(template.replace(RANK, "0"))


def ranked(template: str, number: int, rank: int) -> Path:
    """The path of that iteration and that rank. Raises ConfigError for a template that cannot be
    used."""
    return numbered(template.replace(RANK, str(rank)), number)


def newest(template: str) -> Path:
    """Of the paths that are there, that of the last iteration; the template itself where there is
    none. Raises ConfigError for a template that cannot be used."""
    first = numbered(template, 1)
    if not is_numbered(template):
        return first
    pattern = pattern_of(template)
    found = [pattern.fullmatch(str(path)) for path in candidates(template)]
    numbers = [int(match[1]) for match in found if match]
    kept = [number for number in numbers if numbered(template, number).exists()]
    return numbered(template, max(kept)) if kept else Path(template)


def candidates(template: str) -> list[Path]:
    """What is there that may have a number in the place of each of the template's."""
    wanted = "".join(glob.escape(text) + "*" * named for text, named in _pieces(template))
    return [Path(path) for path in glob.glob(wanted)]  # noqa: PTH207


def pattern_of(template: str) -> re.Pattern[str]:
    """What paths of a template are like."""
    return re.compile(
        "".join(re.escape(text) + r"(\d+)" * named for text, named in _pieces(template))
    )


def _pieces(template: str) -> list[tuple[str, bool]]:
    """Texts of a template, and whether a number follows."""
    return [(text, name is not None) for text, name, _, _ in Formatter().parse(template)]


def literal(path: str) -> str:
    """The template that stands for `path` alone."""
    return path.replace("{", "{{").replace("}", "}}")
