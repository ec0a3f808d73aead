"""Before the start: whether somebody listens at the `--rm-url` of a reward that asks a model, such
as `remote_rm` or `judge`. Nothing is asked there: what it would answer is known by its replies.

A worker may run on another host than the program: where the run joins a cluster, an address that
does not answer here is a note.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agentrl.config.eval_sets import eval_sets
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import source_of
from agentrl.envs.check.rewards import asks_model, shipped_rewards
from agentrl.envs.check.rows import first_rows
from agentrl.envs.env import Env
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import Task
from agentrl.visible import shown_url

__all__ = ["check_reward_model"]

#: Seconds that a connection may take.
_CONNECT_S = 5.0
_PORTS = {"http": 80, "https": 443}

Scored = tuple[Mapping[str, Any], type[Env], Iterable[Task]]


def check_reward_model(config: RunConfig, *, dry_run: bool = False) -> list[str]:
    """Notes for the user. Raises ConfigError for an address that is none, and where nobody listens;
    for a dry run nobody has to."""
    if not config.has_env:
        return []
    notes, refused = [], []
    for url in sorted(set(_addresses(config))):
        whose = f"--rm-url {shown_url(url)}"
        try:
            _connect(url)
        except ValueError:
            refused.append(f"{whose}: an address is wanted, as in http://127.0.0.1:9000/score")
        except OSError as error:
            if dry_run or config.ray_address is not None:
                notes.append(f"{whose}: not reached from here, and a run needs it: {error}")
                continue
            refused.append(
                f"{whose}: nobody listens there ({error}); start the reward model first, or have "
                "the run start it (`reward_service` of --env-args)"
            )
    if refused:
        raise ConfigError("\n".join(refused))
    return notes


def _connect(url: str) -> None:
    """Raises ValueError for what is no address, OSError where nobody listens."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(url)
    place = (parts.hostname, parts.port or _PORTS[parts.scheme])
    socket.create_connection(place, timeout=_CONNECT_S).close()


def _addresses(config: RunConfig) -> Iterator[str]:
    """Those that a reward that ships would ask, of the tasks that can be read; that others cannot
    is told elsewhere."""
    with suppress(AgentRLError):
        for args, cls, tasks in _scored(config):
            if any(asks_model(kind) for _, kind in shipped_rewards(args, cls, tasks)):
                yield str(args["rm_url"])


def _scored(config: RunConfig) -> Iterator[Scored]:
    """The tasks of the run, and of its evaluation sets, that are told an address."""
    runs = [part.config for part in parts_of(config)] or [config]
    for run in [] if config.eval_only else runs:
        if _is_told(run.env_args):
            cls = load_env(run.env or "single-turn")
            yield run.env_args, cls, first_rows(source_of(run, cls))
    told = {name: one for name, one in eval_sets(config).items() if _is_told(one.config.env_args)}
    sets = open_eval_sets(config, load_env(config.env or "single-turn")) if told else {}
    for name, one in told.items():
        yield one.config.env_args, load_env(one.env), sets[name]


def _is_told(args: Mapping[str, Any]) -> bool:
    """A reward model that the run starts comes before an address."""
    return bool(args.get("rm_url")) and "reward_service" not in args
