"""`hermes-stop`: the turns of `qwen` under another name."""

from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tokens.vocab import Vocab

__all__ = ["HermesStopFormat"]


class HermesStopFormat(QwenFormat):
    """A `ChatFormat`; see `ChatML` for its arguments."""

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        super().__init__(
            vocab,
            name="hermes-stop",
            tools_in_prompt=tools_in_prompt,
            default_system=default_system,
        )
