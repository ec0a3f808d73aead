"""Weights & Biases' own package, offline: what the stand-in of the other tests stands for."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracked import resolved, write

pytestmark = pytest.mark.real

_BLOCK, _HEAD, _FULL, _LAST = 32768, 7, 1, 4


def test_the_real_package_writes_offline_what_a_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "wandb is not installed: pip install 'agentrl[wandb]'"
    if not hasattr(pytest.importorskip("wandb", reason=reason), "init"):
        pytest.skip(reason)  # a folder of that name, as W&B leaves it beside a script
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    run = tmp_path / "run"
    config = resolved("--use-wandb --wandb-mode offline --wandb-project agents --wandb-group ours")
    write(config, run)
    write(config, run)  # the run goes on, and finds the id of the first
    known = json.loads((run / "wandb.json").read_text())
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert [path.name for path in files] == [f"run-{known['id']}.wandb"] * 2
    records = [*_records(files[0])]
    (begun,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (begun.run_id, begun.project, begun.run_group) == (known["id"], "agents", known["group"])
    told = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert told["wandb_mode"] == "offline"
    rows = [_row(record.history) for record in records if record.history.item]
    assert rows[0] == {
        "eval/held/score": 0.25,
        "eval/held/n": 4,
        "eval/held/pass@4": 0.5,
        "eval/step": 0,
    }
    assert [row["rollout/step"] for row in rows[1:]] == [1, 2]
    assert [row["train/loss"] for row in rows[1:]] == [-0.1, -0.1]
    assert rows[1]["train/age"] == {"_type": "histogram", "values": [5, 3, 1], "bins": [0, 1, 2, 3]}
    exits = [record.exit.exit_code for record in records if record.HasField("exit")]
    assert exits == [0]


def _records(path: Path) -> Iterator[Any]:
    """What stands in a file of the package."""
    from wandb.proto import wandb_internal_pb2

    for data in _logged(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def _logged(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, behind a header of 7 bytes: pieces of (crc, length,
    kind), none of which goes over the end of a block.
    https://github.com/google/leveldb/blob/main/doc/log_format.md"""
    at, whole = _HEAD, b""
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind in (_FULL, _LAST):
            yield whole
            whole = b""


def _row(history: Any) -> dict[str, Any]:
    """What a run said, by name; what W&B adds begins with `_`."""
    found: dict[str, Any] = {}
    for item in history.item:
        name, *within = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        if within:
            found.setdefault(name, {})[within[0]] = value
        elif not name.startswith("_"):
            found[name] = value
    return found
