"""The tokenizer of a run: that of `hf_checkpoint` in its config.toml."""

import tomllib
from pathlib import Path

from agentrl.errors import AgentRLError, EnvironmentSetupError, StoreError
from agentrl.tokens.vocab import Vocab

__all__ = ["load_vocab"]


def load_vocab(run_dir: Path) -> Vocab:
    """Raises StoreError when config.toml names no model, EnvironmentSetupError when its tokenizer
    is not there."""
    path = run_dir / "config.toml"
    try:
        model = tomllib.loads(path.read_text(encoding="utf-8")).get("hf_checkpoint")
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(model, str):
        raise StoreError(f"{path} names no hf_checkpoint, so nothing says which tokenizer was used")
    try:
        return Vocab.from_file(model)
    except AgentRLError as error:
        raise EnvironmentSetupError(
            f"the run's tokenizer is missing: {error}; bring {model} back, or let hf_checkpoint in"
            f" {path} name a copy of it"
        ) from error
