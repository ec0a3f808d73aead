"""Two ranks over gloo wait for a disk of one of them longer than a collective may take."""

from pathlib import Path
from typing import Any

import msgspec

from tests.parity.states import DISTRIBUTED, ODD, config


def test_a_disk_that_one_rank_waits_for_ends_no_collective(
    hf_model: Any, run_ranks: Any, tmp_path: Path
) -> None:
    """Rank 1 writes into a pipe, to which nobody listens for longer than that; then it is told that
    a pipe is no disk, and so is rank 0."""
    deadline = {"distributed_timeout_minutes": 0.2}
    job = {
        "config": msgspec.to_builtins(config(2, DISTRIBUTED | deadline)),
        "model_dir": str(hf_model(ODD).directory),
        "target": str(tmp_path / "job"),
        "script": [("stall", str(tmp_path / "stalled"))],
    }
    run_ranks(tmp_path, 2, [job])
    said = [(tmp_path / f"stalled-{rank}").read_text() for rank in (0, 1)]
    assert "Invalid argument" in said[1]
    assert said[0] == f"learner rank 1: {said[1]}"
