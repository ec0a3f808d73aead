"""`agentrl eval`: the scores of a model, and nothing is trained.

The stack is that of training: engines, router, your Env and its services. The learner only hands
the weights over. MODEL may be a Hugging Face directory, the name of such a model on the hub
(`org/name`) which this host has in its cache, a run, or a checkpoint of a run; a run that has saved
no model yet is scored by its newest checkpoint.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from agentrl.cli import train
from agentrl.config.places import checkpoints_of
from agentrl.errors import ConfigError
from agentrl.hub import advice, cached
from agentrl.numbered import literal, newest

__all__ = ["evaluate", "model_flags"]

_CHECKPOINT = re.compile(r"iteration_(\d+)")


def evaluate(model: Path, flags: list[str]) -> int:
    """Evaluate a Hugging Face directory; or the model or a checkpoint of a run, with the run's own
    configuration under `flags`. Returns the exit code of the program.

    Raises ConfigError when `model` is neither, and AgentRLError for what cannot be evaluated.
    """
    named = model_flags(model)
    try:
        return train.run([*named, *flags, "--eval-only"], "train_async")
    except ConfigError as error:
        if "--config" not in named:
            raise
        file = named[named.index("--config") + 1]
        raise ConfigError(f"{error}\n  (a flag that you did not give is that of {file})") from error


def model_flags(model: Path) -> list[str]:
    """The flags that name `model`. Raises ConfigError when there is no model."""
    if (model / "config.json").is_file():
        return ["--hf-checkpoint", str(model)]
    if (place := cached(str(model))) is not None:
        return ["--hf-checkpoint", place]
    run = _run_of(model)
    if run is None:
        raise ConfigError(_no_model(model))
    file = run / "config.toml"
    saved = newest(_settings(file).get("save_hf", literal(str(run / "hf"))))
    if model == run and (saved / "config.json").is_file():
        return ["--config", str(file), "--hf-checkpoint", str(saved)]
    checkpoints = checkpoints_of(model)
    if not _has_checkpoint(checkpoints):
        raise ConfigError(
            f"{model} is a run that has saved no model: there is no {saved / 'config.json'}, and "
            f"no checkpoint in {checkpoints}"
        )
    return ["--config", str(file), "--load", str(checkpoints)]


def _run_of(path: Path) -> Path | None:
    """The run at `path`, or the one whose checkpoints, or one of them, lie there."""
    root = path.parent if _CHECKPOINT.fullmatch(path.name) else path
    candidates = [path, *([root.parent] if _has_checkpoint(root) else [])]
    return next((run for run in candidates if (run / "config.toml").is_file()), None)


def _settings(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _no_model(path: Path) -> str:
    """What is wrong with a `path` that is no model and no run."""
    if _has_checkpoint(path):
        return (
            f"{path} holds checkpoints, and there is no config.toml beside them that says of what: "
            "name their run, or score them with `python train_async.py --config RUN/config.toml "
            f"--load {path} --eval-only`"
        )
    return (
        f"{path}: there is neither a Hugging Face model (config.json) nor a run (config.toml)"
        f"{'' if path.exists() else advice(str(path))}"
    )


def _has_checkpoint(root: Path) -> bool:
    """Whether `root` is a checkpoint, or a folder of them."""
    if not root.is_dir():
        return False
    return any(_CHECKPOINT.fullmatch(path.name) for path in (root, *root.iterdir()))
