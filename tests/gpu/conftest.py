"""What a GPU alone can show, one of 16 GiB or more: `pytest tests/gpu` on a GPU host. Elsewhere
these tests are skipped."""

from pathlib import Path

import pytest
import torch

from tests.parity.conftest import free_ports, hf_model, hf_scores, make_hf_model, packed, pg_loss

__all__ = ["free_ports", "hf_model", "hf_scores", "make_hf_model", "packed", "pg_loss"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A hook of one folder sees the tests of all."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))
