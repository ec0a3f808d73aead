"""SGLang's weight digests, computed from Hugging Face tensors.

SGLang's `/weights_checker` hashes each parameter of its own model: the first 8 bytes, as hex, of
the SHA-256 of the raw bytes (`sglang.srt.managers.mm_utils.tensor_hash`, host memory). Its model
differs from the Hugging Face one in three ways, undone here for engines with one rank: parameters
that its family names are several Hugging Face ones, the vocabulary is padded, and the text of a
model that sees has the names that it has alone.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

import torch

__all__ = ["Fused", "expected_checksums"]

#: Modules of SGLang's model, with the Hugging Face modules that each is, in the order of its rows:
#: expert by expert where their names have `{expert}`.
Fused = Mapping[str, tuple[str, ...]]
#: Rows of embedding and output layer are padded with zeros to a multiple of this.
VOCAB_PADDING = 64
_VOCAB_PARAMETERS = ("model.embed_tokens.weight", "lm_head.weight")


def expected_checksums(
    tensors: Iterable[tuple[str, torch.Tensor]], fused: Fused, dtype: torch.dtype | None = None
) -> dict[str, str]:
    """Digest by SGLang parameter name of `tensors` (HF name, tensor) as an engine keeps them: in
    `dtype`, or as they are. A module that a model has without those it would be joined with stays
    what it is: DeepSeek's `kv_a_proj_with_mqa` beside no `q_a_proj`."""
    parts: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    alone: dict[str, str] = {}
    for name, tensor in tensors:
        parameter, row, num_pieces = _sglang_name(name, fused)
        known = parts.setdefault(parameter, {})
        known[row] = tensor if dtype is None else tensor.to(dtype)
        if len(known) == 1 and num_pieces > 1:
            alone[parameter] = name
        else:
            alone.pop(parameter, None)
    return {
        alone.get(parameter, parameter): _digest(_assemble(parameter, pieces))
        for parameter, pieces in parts.items()
    }


def _sglang_name(name: str, fused: Fused) -> tuple[str, tuple[int, int], int]:
    """SGLang's parameter, where in the order of its rows this tensor stands (the number of its
    expert, then of its piece), and of how many pieces it is."""
    name = name.replace("model.language_model.", "model.", 1)
    for module, pieces in fused.items():
        for row, piece in enumerate(pieces):
            pattern = re.escape(piece).replace(r"\{expert\}", r"(?P<expert>\d+)")
            if found := re.search(rf"(?<=\.){pattern}(?=\.|$)", name):
                expert = int(found.groupdict().get("expert", 0))
                return (
                    name[: found.start()] + module + name[found.end() :],
                    (expert, row),
                    len(pieces),
                )
    return name, (0, 0), 1


def _assemble(name: str, pieces: dict[tuple[int, int], torch.Tensor]) -> torch.Tensor:
    rows = [pieces[row] for row in sorted(pieces)]
    tensor = torch.cat(rows) if len(rows) > 1 else rows[0]
    if name in _VOCAB_PARAMETERS:
        padding = -tensor.shape[0] % VOCAB_PADDING
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, padding))
    return tensor


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).digest()[:8].hex()
