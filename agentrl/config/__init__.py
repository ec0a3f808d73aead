"""The typed run configuration, its flags, presets and rules."""

from agentrl.config.run import RunConfig

__all__ = ["RunConfig"]
