"""Whether what a run is to be tracked by is there, before anything starts. Nothing is imported."""

from importlib.util import find_spec

from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_trackers", "uses_wandb"]


def uses_wandb(config: RunConfig) -> bool:
    """Whether W&B is told anything."""
    return config.use_wandb and config.wandb_mode != "disabled"


def check_trackers(config: RunConfig) -> None:
    """Raises EnvironmentSetupError for a package that is not installed."""
    if uses_wandb(config) and not _is_installed("wandb"):
        raise EnvironmentSetupError(
            "--use-wandb: the package wandb is not installed: pip install 'agentrl[wandb]' (in a "
            "clone, pip install '.[wandb]'), or leave --use-wandb out"
        )


def _is_installed(package: str) -> bool:
    """A mere folder of that name, such as W&B itself leaves beside a script, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
