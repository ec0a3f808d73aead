"""What of the services that a run is tracked by is known before anything starts: which are used,
whether their packages are there, and what their flags may not say. No package is imported.

A service is `--use-NAME`, and off under `--NAME-mode disabled`; its package and its extra have that
name too.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.config.secrets import is_shown, secret_names
from agentrl.errors import EnvironmentSetupError
from agentrl.shipped import TRACKERS
from agentrl.visible import shown_url

__all__ = ["about_tracking", "check_trackers", "notes_on_tracking", "used_trackers"]

#: Schemes of stores that are files.
_FILES = ("", "file", "sqlite")
#: A name in a query or fragment that looks like one of a secret, whatever is around it.
_SECRET = re.compile(r"[?#&;=][^=&;]*(pass|pwd|token|key|secret|credential)[^=&;]*=", re.IGNORECASE)


def used_trackers(config: RunConfig) -> list[str]:
    """Names of the services that are told anything."""
    return [
        name
        for name in TRACKERS.places
        if getattr(config, f"use_{name}") and getattr(config, f"{name}_mode", None) != "disabled"
    ]


def notes_on_tracking(config: RunConfig) -> Iterator[str]:
    """Who may have seen a key."""
    for name in secret_names():
        field = own_fields()[name]
        if getattr(config, name) and name.partition("_")[0] in used_trackers(config):
            yield (
                f"{field.flag}: written nowhere, and wiped from the command line of this process "
                "where the system allows that; other users may see it in the command that started "
                f"the run (`ray job submit` keeps that): set {field.fact.variable} in its place"
            )


def about_tracking(config: RunConfig) -> Iterator[str]:
    """What is refused of keys and addresses."""
    for name, field in own_fields().items():
        fact, flag, value = field.fact, field.flag, getattr(config, name)
        if value is None:
            continue
        if fact.secret and config.ray_address is not None and is_shown(value):
            yield (
                f"{flag} with --ray-address: Ray shows the command line to whoever lists the jobs "
                f"of a cluster; leave the flag out and set {fact.variable}"
            )
        if fact.holds in ("address", "uri") and (found := _unsafe(value)):
            # What cannot be told from a secret is not shown either.
            yield (
                f"{flag}: {found}, and config.toml would show it; leave it out (the service reads "
                "keys and passwords from variables of its own), or leave the flag out and set "
                f"{fact.variable}"
            )
        elif fact.holds == "address" and not value.startswith(("http://", "https://")):
            shown = shown_url(value)
            yield f"{flag} {shown}: an address is wanted, as in https://{shown}"


def _unsafe(address: str) -> str:
    """Where in an address a secret may stand; nothing: nowhere."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "it cannot be read as an address, so a password may stand in it"
    # A password may have / ? or #, so that it ends before its @; a path of a file may have any.
    if "@" in address and (parts.netloc or parts.scheme not in _FILES):
        return "a user, password or token stands before its @"
    if _SECRET.search(unquote(address)):
        return "its query has a password, token or key"
    return ""


def check_trackers(config: RunConfig) -> None:
    """Raises EnvironmentSetupError for a package that is not installed."""
    for name in used_trackers(config):
        if not _is_installed(name):
            raise EnvironmentSetupError(
                f"--use-{name}: the package {name} is not installed: pip install 'agentrl[{name}]' "
                f"(in a clone, pip install '.[{name}]'), or leave --use-{name} out"
            )


def _is_installed(package: str) -> bool:
    """A mere folder of that name, such as W&B itself leaves beside a script, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
