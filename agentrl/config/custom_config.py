"""`--custom-config-path`: names and values that functions of slime's users find in their `args`.

    mis_level: token        args.mis_level == "token"
    veto_threshold: null    args.veto_threshold is None

In slime such a file may also set flags, after all else has been read. Here a flag has one value,
and that is told at start: a name that a flag has is refused, unless it says what the run has.
"""

import shlex
from collections.abc import Iterator
from typing import Any

from agentrl.config.answers import row_of
from agentrl.config.fields import Field, convert, own_fields
from agentrl.config.passthrough import is_passed
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["about_custom_config"]

_FLAG = "--custom-config-path"


def about_custom_config(config: RunConfig) -> Iterator[str]:
    """A line for each name that cannot be one of `args`, or is that of a flag."""
    for name, value in config.custom_config_path.items():
        if not name.isidentifier() or name.startswith("_"):
            yield f"{_FLAG}: {name!r:.80} is no name of an attribute; a function could not read it"
        elif (flag := _flag_of(config, name, value)) is not None:
            yield (
                f"{_FLAG}: {name} is a flag of the run, and a run has one value of it: leave it "
                f"out of the file, and give {flag}"
            )


def _flag_of(config: RunConfig, name: str, value: Any) -> str | None:
    """The flag that says it; None where there is none, or the run has that value."""
    field, is_inverse = own_fields().get(name), False
    if field is None:
        field, is_inverse = own_fields().get(f"disable_{name}"), True
    if field is None:
        flag = f"--{name.replace('_', '-')}"
        return f"{flag} {_word(value)}" if row_of(name) or is_passed(flag) else None
    wanted = not value if is_inverse and isinstance(value, bool) else value
    if _as_it_is(field, wanted) == getattr(config, field.name):
        return None
    if isinstance(wanted, bool) and field.kind == "bool":
        return field.spelled(wanted)
    return f"{field.flag} {_word(wanted)}"


def _as_it_is(field: Field, value: Any) -> Any:
    """`value` as the flag would be; where it cannot be, as it is."""
    try:
        return None if value is None else convert(field, value)
    except ConfigError:
        return value


def _word(value: Any) -> str:
    return shlex.quote(str(value))
