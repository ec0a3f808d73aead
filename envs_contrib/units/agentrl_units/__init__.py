"""`units/convert`, an environment for agentrl: convert units, with a table and a calculator."""

from agentrl_units.env import ConvertEnv

__all__ = ["ConvertEnv"]
