"""`load_tokenizer`: a tokenizer as transformers loads it."""

from typing import Any

__all__ = ["load_tokenizer"]


def load_tokenizer(name_or_path: str, **kwargs: Any) -> Any:
    """The tokenizer of a model directory. The first takes seconds, for what it imports."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name_or_path, **kwargs)
