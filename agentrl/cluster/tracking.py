"""The services that a run's metrics go to, by its flags."""

import re
from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.config.tracking import uses_wandb
from agentrl.telemetry.sinks import Tracker
from agentrl.telemetry.wandb_run import WandbSettings
from agentrl.visible import shown_url

__all__ = ["shown_config", "trackers"]

#: What stands between two addresses in one text.
_BETWEEN = re.compile(r"(\s+|,(?=[A-Za-z][\w+.-]*://))")


def trackers(config: RunConfig) -> list[Tracker]:
    """Settings of each, not yet opened."""
    return [_wandb(config)] if uses_wandb(config) else []


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
        return "".join(shown_url(w) if "://" in w else w for w in _BETWEEN.split(value))
    if isinstance(value, dict):
        return {key: _shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shown(each, name) for each in value)
    return value


def _wandb(config: RunConfig) -> WandbSettings:
    return WandbSettings(
        project=config.wandb_project,
        group=config.wandb_group,
        has_suffix=not config.disable_wandb_random_suffix,
        team=config.wandb_team,
        key=config.wandb_key,
        host=config.wandb_host,
        mode=None if config.wandb_mode == "disabled" else config.wandb_mode,
        directory=config.wandb_dir,
        run_id=config.wandb_run_id,
        steps_per_iteration=config.num_steps_per_rollout,
        counts_steps=config.wandb_always_use_train_step,
    )
