"""The services of a run: those of its Env, and of the Envs of evaluation sets."""

from collections.abc import Mapping, Sequence

from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env

__all__ = ["services_of_run", "services_of_set"]


def services_of_run(config: RunConfig, sets: Sequence[EvalSet]) -> dict[str, ServiceSpec]:
    """By the names of their processes. A set shares a service that is the same as one of training,
    and has one of its own otherwise."""
    env = load_env(config.env or "single-turn")
    found = dict(env.service_specs(config.env_args))
    of_training = dict(found)
    for place, one in enumerate(sets):
        for name, spec in load_env(one.env).service_specs(one.config.env_args).items():
            if of_training.get(name) != spec:
                found[name + _suffix(place)] = spec
    return found


def services_of_set(place: int, addresses: Mapping[str, str]) -> dict[str, str]:
    """What the Env of the set at `place` finds under the names of its own: of the `addresses` of a
    run's services."""
    suffix = _suffix(place)
    own = {n.removesuffix(suffix): url for n, url in addresses.items() if n.endswith(suffix)}
    return {**addresses, **own}


def _suffix(place: int) -> str:
    return f"-eval{place}"
