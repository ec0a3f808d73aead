"""Rows on disk as others write them: Parquet, and what `save_to_disk` of `datasets` leaves.

The folders are those of `datasets` 4: an Arrow stream for each shard, `state.json` and
`dataset_info.json`.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["write_dataset", "write_parquet"]


def write_parquet(path: Path, rows: Sequence[dict[str, Any]], *, group: int = 1000) -> Path:
    """`rows` as Parquet, in row groups of so many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)
    return path


def write_dataset(
    folder: Path, shards: Iterable[Sequence[dict[str, Any]]], *, batch: int = 1000
) -> Path:
    """`shards` as `Dataset.save_to_disk` writes them."""
    folder.mkdir(parents=True)
    tables = [pa.Table.from_pylist(list(rows)) for rows in shards]
    files = []
    for number, table in enumerate(tables):
        name = f"data-{number:05}-of-{len(tables):05}.arrow"
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as out,
        ):
            for part in table.to_batches(max_chunksize=batch):
                out.write_batch(part)
        files.append({"filename": name})
    state: dict[str, Any] = {
        "_data_files": files,
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    (folder / "state.json").write_text(json.dumps(state))
    total = sum(table.num_rows for table in tables)
    info = {"features": {}, "splits": {"train": {"name": "train", "num_examples": total}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder
