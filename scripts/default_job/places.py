"""Where things lie: the repository, and the model that the default job starts from."""

from pathlib import Path

from agentrl.config.presets import DEFAULT, preset

__all__ = ["MODEL_DIR", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
MODEL_DIR = Path(preset(DEFAULT).values["hf_checkpoint"])
