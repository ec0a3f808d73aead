"""A reward model that a run starts beside itself: `reward_service` of --env-args.

    {"argv": ["python", "serve.py", "--port", "{port}"], "ready_path": "/health", "path": "/score"}

It is started with the run, watched, and started again where it ends (`ServiceSpec`); a reward that
asks a model asks it, at `path`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from agentrl.errors import ConfigError

__all__ = ["SERVICE", "RewardService", "service_of"]

#: What the service is called among those of the run.
SERVICE = "reward-model"


class RewardService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """argv: run without a shell, `{host}` and `{port}` replaced. ready_path: where a GET answers
    200 once it is up. path: what follows its address in a request. gpus, cpus and per: devices and
    processors of its own, and whether each node has a copy, as in `ServiceSpec`."""

    argv: list[str]
    ready_path: str = "/health"
    path: str = ""
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    cpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    per: Literal["run", "node"] = "run"


def service_of(told: Mapping[str, Any]) -> RewardService:
    """Raises ConfigError for what is no service."""
    try:
        return msgspec.convert(dict(told), RewardService)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(f"`reward_service` of --env-args is no service: {error}") from error
