"""Files of settings: `--config FILE`, and the `config.toml` of a run.

Keys are those of the flags with underscores; settings of Megatron, SGLang and the router stand in
tables of their own. A name that the table of answers knows is answered as on the command line, and
so is each setting of a file that verl, AReaL or TRL reads.
Refused: what is no file of settings, unknown names with the nearest, and values out of bounds.
"""

from pathlib import Path
from typing import Any

from agentrl.config import answers, passthrough, peers
from agentrl.config.answers import Asked
from agentrl.config.fields import own_fields
from agentrl.config.given import GivenFlags, take_of_family, take_own
from agentrl.config.passthrough import FAMILIES, Family, family_of, spelled
from agentrl.config.renames import in_written_names, setting_of_today, written_names
from agentrl.config.settings_file import settings_of
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = ["read_file"]


def read_file(path: Path) -> GivenFlags:
    """What a TOML or YAML file says. Raises ConfigError where it cannot be read."""
    given = GivenFlags()
    for name, value in settings_of(path).items():
        try:
            _take(given, path, str(name), value)
        except ConfigError as error:
            given.refused.append(str(error))
    given.refused.extend(f"{path}: {line}" for line in answers.refusals(given.asked))
    given.refused[:] = in_written_names(given.refused, written_names(given.asked))
    return given


def _take(given: GivenFlags, path: Path, name: str, value: Any) -> None:
    key = name.replace("-", "_")
    found = answers.row_of(name)
    if found is not None and found[1].renamed:
        given.asked.append(Asked(found[0], name))
        if (today := setting_of_today(found[1], value)) is not None:
            _take_flag(given, *today)
    elif family := next((f for f in FAMILIES if f == key), None):
        _take_table(given, family, value)
    elif key in own_fields():
        take_own(given, own_fields()[key], value)
    elif found is not None and found[1].state != "works":
        is_no = found[0] != "--" + name.replace("_", "-")
        asked = Asked(found[0], name, _words(value, is_no=is_no))
        if value is False and not is_no and found[1].state == "noted" and answers.refusals([asked]):
            given.notes.append(f"{name} = false is as without it: {found[1].says}")
        else:
            given.asked.append(asked)
    elif told := list(peers.told(name, value)):
        given.refused.extend(f"{path}: unknown setting {line}" for line in told)
    else:
        raise ConfigError(
            f"{path}: unknown setting {name}{nearest(key, own_fields())}; settings of Megatron, "
            "SGLang and the router belong into tables [megatron], [sglang] and [router]"
        )


def _take_flag(given: GivenFlags, flag: str, value: Any) -> None:
    """A setting under the name that its flag has."""
    own = next((field for field in own_fields().values() if field.flag == flag), None)
    if own is not None:
        take_own(given, own, value)
        return
    family, name = family_of(flag)
    given.values.setdefault(family, {})
    take_of_family(given, family, name, value)


def _words(value: Any, *, is_no: bool) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(value is not is_no).lower(),)
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _take_table(given: GivenFlags, family: Family, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{family} is {value!r}; it must be a table of settings by name")
    given.values.setdefault(family, {})
    for name, item in value.items():
        key = str(name)
        found = answers.row_of(spelled(family, key))
        if found is not None and found[1].renamed:
            given.asked.append(Asked(found[0], key))
            if (today := setting_of_today(found[1], item)) is not None:
                _take_flag(given, *today)
            continue
        take_of_family(given, family, passthrough.check_key(family, key, f"[{family}]"), item)
