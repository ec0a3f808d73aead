"""The services of a run: those of its Env, and of the Envs of evaluation sets.

process      NAME            of the run's Env
             NAME-evalN      of the Nth set, where no process runs the same service yet
"""

from collections.abc import Sequence

import msgspec

from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env

__all__ = ["Services", "services_of_run"]


class Services(msgspec.Struct, frozen=True):
    """`processes`: each service by the name of its process. `of_sets`: for each set, the process of
    each service by the name under which its Env looks for it."""

    processes: dict[str, ServiceSpec]
    of_sets: list[dict[str, str]]


def services_of_run(config: RunConfig, sets: Sequence[EvalSet]) -> Services:
    """One process for each service, whoever shares it. The same on every host: names follow from
    the flags alone."""
    processes = dict(load_env(config.env or "single-turn").service_specs(config.env_args))
    found = Services(processes, [])
    for place, one in enumerate(sets):
        named: dict[str, str] = {}
        for name, spec in load_env(one.env).service_specs(one.config.env_args).items():
            running = next((p for p, each in processes.items() if each == spec), None)
            named[name] = running or f"{name}-eval{place}"
            processes[named[name]] = spec
        found.of_sets.append(named)
    return found
