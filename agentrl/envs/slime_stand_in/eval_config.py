"""`EvalDatasetConfig`: an evaluation set, as `args.eval_datasets` lists them."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["EvalDatasetConfig"]


@dataclass
class EvalDatasetConfig:
    """The flags of a set under slime's names. `path`: None for one that an environment brings."""

    name: str
    path: str | None
    rm_type: str | None = None
    custom_rm_path: str | None = None
    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    n_samples_per_eval_prompt: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    apply_chat_template: bool | None = None
    custom_generate_function_path: str | None = None
    metadata_overrides: dict[str, Any] = field(default_factory=dict)

    def inject_metadata(self, sample_metadata: Any) -> dict[str, Any]:
        """The metadata of a row, with what the set says of each."""
        own = sample_metadata if isinstance(sample_metadata, dict) else {}
        kind = {} if self.rm_type is None else {"rm_type": self.rm_type}
        return {**own, **kind, **self.metadata_overrides}
