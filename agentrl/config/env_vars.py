"""`--env-vars` and `--train-env-vars`: variables that the processes of a run have, on every node.

NAME=VALUE    written to config.toml, as all flags are
NAME          the value that the program which starts the run has; written nowhere
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping

import msgspec

from agentrl.config.run import RunConfig
from agentrl.config.shell_values import Argument

__all__ = [
    "about_env_vars",
    "advice_on_environment",
    "env_vars",
    "notes_on_env_vars",
    "train_env_vars",
    "without_secret_values",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What the names of secrets have.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_HIDDEN = "[hidden]"
_DEVICES = (
    "every process gets the devices that are its own; give the run fewer (--rollout-num-gpus, "
    "--actor-num-gpus-per-node), or export it before the run"
)
_BEFORE = "export it before the run, or before `ray start` on a cluster"
_PATHS = (
    "Megatron is an installed package here, so no path leads to it; for modules of your own "
    f"{_BEFORE}, or give files by their path (path/to/file.py:name)"
)
_OURS = "the run sets it itself"
_NCCL = (
    "learner and engines must agree on it, and SGLang decides it (--sglang-enable-symm-mem, "
    "--sglang-enable-nccl-nvls)"
)
#: What a run sets by itself, and what to do instead.
_TAKEN = {
    "CUDA_VISIBLE_DEVICES": _DEVICES,
    **dict.fromkeys(("PYTHONPATH", "TMPDIR"), _BEFORE),
    **dict.fromkeys(("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"), _NCCL),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), _OURS),
    **dict.fromkeys(("SGLANG_PLATFORM", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"), _OURS),
    "SGLANG_TIMEOUT_KEEP_ALIVE": _OURS,
}


def env_vars(config: RunConfig) -> dict[str, str]:
    """The variables of every process; one that is named alone has the value of this one."""
    pairs = (word.partition("=") for word in config.env_vars)
    return {name: value if equals else os.environ.get(name, "") for name, equals, value in pairs}


def train_env_vars(config: RunConfig) -> dict[str, str]:
    """Those that the ranks of the learner have besides."""
    return {name: str(value) for name, value in config.train_env_vars.items()}


def about_env_vars(config: RunConfig, here: Mapping[str, str] | None = None) -> Iterator[str]:
    """Names that are none, that the run sets itself, or that are not known here."""
    here = os.environ if here is None else here
    named = [("--env-vars", *word.partition("=")[:2]) for word in config.env_vars]
    named += [("--train-env-vars", name, "=") for name in config.train_env_vars]
    for flag, name, equals in named:
        if not _NAME.fullmatch(name):
            yield (
                f"{flag} {name!r:.60}: a variable has a name of letters, digits and underscores; "
                "write NAME=VALUE"
            )
        elif name in _TAKEN or name.startswith("AGENTRL_"):
            yield f"{flag} {name}: {_TAKEN.get(name, _OURS)}"
        elif not equals and name not in here:
            yield (
                f"{flag} {name}: there is no such variable here whose value could be passed on; "
                "write NAME=VALUE, or export it"
            )
    for name, value in config.train_env_vars.items():
        if not isinstance(value, str | int | float):
            yield f"--train-env-vars {name}: {value!r:.60} is no text and no number"
    if any("\0" in text for text in (*config.env_vars, *map(str, config.train_env_vars.values()))):
        yield "--env-vars: a value holds the character of code 0, which no variable can"


def advice_on_environment(words: Mapping[str, Argument]) -> Iterator[str]:
    """How a run has the variables that a script sets for its program: a line with what to give, and
    one for those that no flag may set. `words`: NAME=VALUE or NAME, by name."""
    given = []
    barred: dict[str, list[str]] = {}
    for name, word in words.items():
        if name == "PYTHONPATH":
            barred.setdefault(_PATHS, []).append(name)
        elif name in _TAKEN or name.startswith("AGENTRL_"):
            barred.setdefault(_TAKEN.get(name, _OURS), []).append(name)
        elif _SECRET.search(name):
            given.append(name)
        else:
            given.append(shlex.quote(word.text) if word.known else word.text)
    if given:
        yield f"--env-vars {' '.join(given)} gives them to every process of the run, on every node"
    for why, names in barred.items():
        yield f"{', '.join(names)}: {why}"


def without_secret_values(config: RunConfig) -> RunConfig:
    """`config` as it is shown: without the values of variables whose names are those of secrets."""
    words = [
        f"{name}={_HIDDEN}" if equals and _SECRET.search(name) else word
        for word in config.env_vars
        for name, equals, _ in [word.partition("=")]
    ]
    values = {
        name: _HIDDEN if _SECRET.search(name) else value
        for name, value in config.train_env_vars.items()
    }
    return msgspec.structs.replace(config, env_vars=words, train_env_vars=values)


def notes_on_env_vars(config: RunConfig) -> Iterator[str]:
    """Values that look like secrets: they are written down with all other flags."""
    named = [("--env-vars", *word.partition("=")[:2]) for word in config.env_vars]
    named += [("--train-env-vars", name, "=") for name in config.train_env_vars]
    for flag, name, equals in named:
        if equals and _SECRET.search(name):
            yield (
                f"{flag} {name}: its value is written to config.toml; export "
                f"it and give --env-vars {name}, which passes it on and writes it nowhere"
            )
