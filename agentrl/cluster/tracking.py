"""The services that a run's metrics go to, by its flags."""

from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.config.tracking import used_trackers
from agentrl.telemetry.trackers.base import Tracker, load_tracker
from agentrl.visible import shown_url, shown_urls

__all__ = ["shown_config", "trackers"]


def trackers(config: RunConfig) -> list[Tracker]:
    """Each with the flags that it reads; no run has begun there yet."""
    kinds = [load_tracker(name) for name in used_trackers(config)]
    return [
        kind(**{name: getattr(config, name) for name in kind.__struct_fields__}) for kind in kinds
    ]


def shown_config(config: RunConfig) -> dict[str, Any]:
    """What trackers show of a run's settings: addresses without the credentials in them, and of
    variables the names."""
    values = msgspec.structs.asdict(without_secrets(config))
    # Anything may stand in a variable: names alone.
    values["env_vars"] = [word.partition("=")[0] for word in config.env_vars]
    values["train_env_vars"] = sorted(config.train_env_vars)
    return {name: _shown(value, name) for name, value in values.items()}


def _shown(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        if name.endswith("url"):
            return shown_url(value)
        return shown_urls(value)
    if isinstance(value, dict):
        return {key: _shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shown(each, name) for each in value)
    return value
