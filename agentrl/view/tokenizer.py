"""The tokenizer of a run: that of `hf_checkpoint` in its config.toml."""

from pathlib import Path

from agentrl.errors import AgentRLError, EnvironmentSetupError, StoreError
from agentrl.tokens.vocab import Vocab
from agentrl.view.config import read_settings

__all__ = ["load_vocab"]


def load_vocab(run_dir: Path) -> Vocab:
    """Raises StoreError when config.toml names no model, EnvironmentSetupError when its tokenizer
    is not there."""
    path = run_dir / "config.toml"
    model = read_settings(run_dir).get("hf_checkpoint")
    if not isinstance(model, str):
        raise StoreError(f"{path} names no hf_checkpoint, so nothing says which tokenizer was used")
    try:
        return Vocab.from_file(model)
    except AgentRLError as error:
        raise EnvironmentSetupError(
            f"the run's tokenizer is missing: {error}; bring {model} back, or let hf_checkpoint in"
            f" {path} name a copy of it"
        ) from error
