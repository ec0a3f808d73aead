"""The services of a run: those of its Env or of the parts of its mixture, and of evaluation sets.

process      NAME            of the run's Env
             NAME-PART       of a part, where no process runs the same service yet
             NAME-evalN      of the Nth set, likewise
"""

from collections.abc import Mapping, Sequence

import msgspec

from agentrl.config.eval_sets import EvalSet
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env

__all__ = ["Services", "gpus_of", "services_of_run"]


class Services(msgspec.Struct, frozen=True):
    """`processes`: each service by the name of its process. `of_parts` and `of_sets`: for each part
    and set, the process of each service by the name under which its Env looks for it."""

    processes: dict[str, ServiceSpec]
    of_parts: list[dict[str, str]]
    of_sets: list[dict[str, str]]


def services_of_run(config: RunConfig, sets: Sequence[EvalSet]) -> Services:
    """One process for each service, whoever shares it. The same on every host: names follow from
    the flags alone."""
    parts = parts_of(config)
    processes = {} if parts else dict(_specs(config))

    def placed(way: RunConfig, label: str) -> dict[str, str]:
        named: dict[str, str] = {}
        for name, spec in _specs(way).items():
            running = next((p for p, each in processes.items() if each == spec), None)
            named[name] = running or f"{name}-{label}"
            processes[named[name]] = spec
        return named

    of_parts = [placed(part.config, part.name) for part in parts]
    of_sets = [placed(one.config, f"eval{place}") for place, one in enumerate(sets)]
    return Services(processes, of_parts, of_sets)


def gpus_of(services: Mapping[str, ServiceSpec]) -> dict[str, int]:
    """How many GPUs each service asks for, by the name of its process."""
    return {name: spec.gpus for name, spec in services.items()}


def _specs(config: RunConfig) -> dict[str, ServiceSpec]:
    return load_env(config.env or "single-turn").service_specs(config.env_args)
