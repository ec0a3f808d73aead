"""`--port-range`: the TCP ports that processes of a run may listen on."""

import re
from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_port_range", "ports_of"]

_FLAG = "--port-range"
#: Below it a port is for root alone.
_FIRST, _LAST = 1024, 65535
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")


def ports_of(config: RunConfig) -> range | None:
    """The ports of the range, which `about_port_range` accepts; None: nobody named one."""
    if config.port_range is None:
        return None
    first, last = map(int, config.port_range.split("-"))
    return range(first, last + 1)


def about_port_range(config: RunConfig) -> Iterator[str]:
    """What is wrong with the range."""
    text = config.port_range
    if text is None:
        return
    found = _RANGE.fullmatch(text)
    if found is None:
        yield f"{_FLAG} {text!r}: write the first and the last port, as in 20000-20999"
        return
    first, last = map(int, found.groups())
    if not _FIRST <= first <= last <= _LAST:
        yield f"{_FLAG} {text}: give two ports from {_FIRST} to {_LAST}, the lower one first"
