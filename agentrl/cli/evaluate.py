"""`agentrl eval MODEL [flags of train_async.py]`: the scores of a model, and nothing is trained.

The stack is that of training: engines, router, your Env and its services. The learner only hands
the weights over.
"""

from pathlib import Path

from agentrl.cli.train import main as train
from agentrl.errors import ConfigError

__all__ = ["evaluate"]


def evaluate(model: Path, flags: list[str]) -> int:
    """Evaluate a Hugging Face directory, or the model of a run directory with the run's own
    configuration under `flags`; returns the exit code of the program.

    Raises ConfigError when `model` is neither.
    """
    return train([*_model_flags(model), *flags, "--eval-only"], program="train_async")


def _model_flags(model: Path) -> list[str]:
    if (model / "config.json").is_file():
        return ["--hf-checkpoint", str(model)]
    if (model / "hf" / "config.json").is_file() and (model / "config.toml").is_file():
        return ["--config", str(model / "config.toml"), "--hf-checkpoint", str(model / "hf")]
    raise ConfigError(
        f"{model}: there is neither a Hugging Face model (config.json) nor a run that has saved "
        "one (hf/)"
    )
