"""The services of a run: those of its Env or of the parts of its mixture, and of evaluation sets.

process      NAME            of the run's Env
             NAME-PART       of a part, where no process runs the same service yet
             NAME-evalN      of the Nth set, likewise

A process, its slot and its log file have one name in a run. Refused are names that the run's own
have, one name for two services, and names that cannot be a file's in the folder of logs.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from agentrl.config.eval_sets import EvalSet
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env
from agentrl.errors import ConfigError

__all__ = ["Services", "cpus_of", "gpus_of", "services_of_run"]

#: What processes, logs and slots (`agentrl/cluster/slots.py`) of the run itself are called.
_OWN = re.compile(
    r"buffer|router|driver|host"
    r"|(learner|worker|workers|engine|eval-engine|empty)-\d+(\.\d+)?"
)
_MAX_BYTES = 200


class Services(msgspec.Struct, frozen=True):
    """`processes`: each service by the name of its process. `of_parts` and `of_sets`: for each part
    and set, the process of each service by the name under which its Env looks for it."""

    processes: dict[str, ServiceSpec]
    of_parts: list[dict[str, str]]
    of_sets: list[dict[str, str]]


def services_of_run(config: RunConfig, sets: Sequence[EvalSet]) -> Services:
    """One process for each service, whoever shares it. The same on every host: names follow from
    the flags alone. Raises ConfigError for a name that a process cannot have."""
    parts = parts_of(config)
    processes = {} if parts else dict(_specs(config))
    for name in processes:
        _check_name(name, config)

    def placed(way: RunConfig, label: str) -> dict[str, str]:
        named: dict[str, str] = {}
        for name, spec in _specs(way).items():
            running = next((p for p, each in processes.items() if each == spec), None)
            if running is None:
                running = f"{name}-{label}"
                _check_name(running, way)
                if running in processes:
                    raise ConfigError(
                        f"{_whose(way)}: two services would be the process {running!r}; give one "
                        "of them another name"
                    )
                processes[running] = spec
            named[name] = running
        return named

    of_parts = [placed(part.config, part.name) for part in parts]
    of_sets = [placed(one.config, f"eval{place}") for place, one in enumerate(sets)]
    return Services(processes, of_parts, of_sets)


def gpus_of(services: Mapping[str, ServiceSpec]) -> dict[str, int]:
    """How many GPUs each service asks for, by the name of its process."""
    return {name: spec.gpus for name, spec in services.items()}


def cpus_of(services: Mapping[str, ServiceSpec]) -> dict[str, int]:
    """How many processors each service asks for, by the name of its process."""
    return {name: spec.cpus for name, spec in services.items()}


def _check_name(name: object, config: RunConfig) -> None:
    is_file = isinstance(name, str) and name.isprintable() and "/" not in name
    if not is_file or not 0 < len(str(name).encode()) <= _MAX_BYTES:
        raise ConfigError(
            f"{_whose(config)}: {name!r:.80} is no name of a service; its log file has that name: "
            f"give 1 to {_MAX_BYTES} bytes of printable characters without /"
        )
    if _OWN.fullmatch(str(name)):
        raise ConfigError(
            f"{_whose(config)}: the service {name!r} cannot run beside a process or slot of the "
            "run that is called so; give it another name"
        )


def _whose(config: RunConfig) -> str:
    return f"--env {config.env or 'single-turn'}: service_specs"


def _specs(config: RunConfig) -> dict[str, ServiceSpec]:
    return load_env(config.env or "single-turn").service_specs(config.env_args)
