"""Whether the network interfaces that variables name are there: a collective that is given none
waits, or fails in the middle of the start.

    NCCL_SOCKET_IFNAME   names by how they begin, separated by commas; after = whole names; after ^
                         what is not to be taken. One interface is enough
    GLOO_, TP_           whole names, each of which has to be there
"""

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["INTERFACES", "interfaces_named", "lacking_interfaces", "loopback_interfaces"]

_NCCL = "NCCL_SOCKET_IFNAME"
_LOOPBACK = "lo"
#: Variables by which gloo, NCCL and TensorPipe are told their interface.
INTERFACES = ("GLOO_SOCKET_IFNAME", _NCCL, "TP_SOCKET_IFNAME")


def interfaces_named(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment those variables that say something."""
    return {name: environment[name] for name in INTERFACES if environment.get(name)}


def lacking_interfaces(named: Mapping[str, str], there: Sequence[str]) -> Iterator[str]:
    """The variables, as NAME=VALUE, for which a node with the interfaces `there` has none."""
    for name, value in interfaces_named(named).items():
        is_there = _nccl_finds(value, there) if name == _NCCL else set(_names(value)) <= {*there}
        if not is_there:
            yield f"{name}={value}"


def loopback_interfaces(named: Mapping[str, str]) -> Iterator[str]:
    """The variables, as NAME=VALUE, that name the loopback interface, by which no other node is
    reached."""
    for name, value in interfaces_named(named).items():
        if name == _NCCL and value.startswith("^"):
            continue
        told = {each.partition(":")[0] for each in _names(value.removeprefix("="))}
        if told == {_LOOPBACK} or (name != _NCCL and _LOOPBACK in told):
            yield f"{name}={value}"


def _nccl_finds(value: str, there: Sequence[str]) -> bool:
    without = value.startswith("^")
    value = value.removeprefix("^")
    is_whole = value.startswith("=")
    names = [name.partition(":")[0] for name in _names(value.removeprefix("="))]
    named = [
        interface
        for interface in there
        if any(interface == name if is_whole else interface.startswith(name) for name in names)
    ]
    return len(named) < len(there) if without else bool(named)


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]
