"""The services of a run: those of its Env or of the parts of its mixture, and of evaluation sets.

process      NAME            of the run's Env
             NAME-PART       of a part, where no process runs the same service yet
             NAME-evalN      of the Nth set, likewise

A service that each node has is NAME on the program's node, and NAME.1, NAME.2 on others.

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

__all__ = ["Services", "copy_name", "needs_of", "per_node", "services_of_run"]

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
    for name in processes:
        _check_no_copy(name, per_node(processes), config)
    return Services(processes, of_parts, of_sets)


def needs_of(
    services: Mapping[str, ServiceSpec],
) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """By the names of their processes, the GPUs and the processors that services ask for, and of
    which of them each node has a copy."""
    gpus = {name: spec.gpus for name, spec in services.items()}
    cpus = {name: spec.cpus for name, spec in services.items()}
    return gpus, cpus, per_node(services)


def per_node(services: Mapping[str, ServiceSpec]) -> list[str]:
    """The processes of which each node with agent workers has a copy."""
    return [name for name, spec in services.items() if spec.per == "node"]


def copy_name(process: str, node: int) -> str:
    """The process of a copy, by the number of its node (0: the program's)."""
    return f"{process}.{node}" if node else process


def _check_no_copy(name: str, copied: Sequence[str], config: RunConfig) -> None:
    for each in copied:
        if re.fullmatch(re.escape(each) + r"\.\d+", name):
            raise ConfigError(
                f"{_whose(config)}: the service {name!r} has the name of a copy of {each!r} "
                '(per="node") on another node; give it another name'
            )


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
