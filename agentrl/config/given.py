"""What a command line or a file says, flag by flag: taken, asked of the table, refused."""

from typing import Any

import msgspec

from agentrl.config import answers, fields, passthrough
from agentrl.config.answers import Asked
from agentrl.config.fields import Field
from agentrl.config.passthrough import Family, spelled
from agentrl.errors import ConfigError

__all__ = ["GivenFlags", "last_of", "take_of_family", "take_own"]


class GivenFlags(msgspec.Struct, frozen=True):
    """Values by field, a family's under its name; the spellings of these fields; the flags that the
    table answers; a line for each that is refused, and for each that is given twice."""

    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    asked: list[Asked] = []
    refused: list[str] = []
    notes: list[str] = []
    config: str | None = None
    dry_run: bool = False


def last_of(
    notes: list[str], flag: str, values: list[Any], collects: int = 0, *, secret: bool = False
) -> Any:
    """The value of a flag that was given `values`: the last, and all of them where it `collects` so
    many words at a time. What holds no more is added to `notes`. Raises ConfigError for one that
    collects and was given another number of words."""
    if collects and len(values) > 1:
        for words in values:
            if len(words) % collects:
                raise ConfigError(
                    f"{flag} {' '.join(words)}: of a flag that is given {len(values)} times, each "
                    f"wants its words in groups of {collects}"
                )
        notes.append(f"{flag} is given {len(values)} times: all that it names holds")
        return [word for words in values for word in words]
    *earlier, last = values
    others = dict.fromkeys(_text(value) for value in earlier if value != last)
    if others and secret:
        notes.append(f"{flag} is given {len(values)} times: the last holds")
    elif others:
        notes.append(
            f"{flag} is given {len(values)} times: {_text(last)} holds, the last, and not "
            f"{' or '.join(others)}"
        )
    return last


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def take_own(given: GivenFlags, field: Field, value: Any) -> None:
    """Add a value of one of agentrl's own flags. Raises ConfigError for one that cannot be."""
    if field.flag in answers.rows():
        words = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        if waiting := answers.refusals([Asked(field.flag, field.flag, words)]):
            given.refused.extend(waiting)
            return
        if answers.is_ruled(field.flag, words):
            given.asked.append(Asked(field.flag, field.flag, words))
            return
    given.values[field.name] = fields.convert(field, value)
    given.said[field.name] = field.spelled(value)


def take_of_family(given: GivenFlags, family: Family, key: str, value: Any) -> None:
    """Add a value of a flag that is passed on, or ask the table where that answers it. Raises
    ConfigError for one that cannot be."""
    if asked := answers.answered(family, key, value):
        given.asked.append(asked)
        return
    given.values.setdefault(family, {})[key] = passthrough.convert(family, key, value)
    flag = spelled(family, "--" + key.replace("_", "-"))
    given.said[family] = ", ".join(filter(None, (given.said.get(family), flag)))
