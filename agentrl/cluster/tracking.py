"""The services that a run's metrics go to, by its flags."""

from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.config.tracking import uses_wandb
from agentrl.telemetry.sinks import Tracker
from agentrl.telemetry.wandb_run import WandbSettings

__all__ = ["shown_config", "trackers"]


def trackers(config: RunConfig) -> list[Tracker]:
    """Settings of each, not yet opened."""
    return [_wandb(config)] if uses_wandb(config) else []


def shown_config(config: RunConfig) -> dict[str, Any]:
    """What trackers show of a run's settings."""
    return msgspec.structs.asdict(without_secrets(config))


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
