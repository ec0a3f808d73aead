"""Damage in the middle of a set of rows is told before anything starts, in each of its formats."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.envs.check.rows import check_rows
from agentrl.envs.rows.load import open_rows
from agentrl.envs.sources import RowSource
from agentrl.errors import AgentRLError, ConfigError, DataError
from tests.unit.row_files import write_dataset, write_parquet

pytestmark = pytest.mark.slow

_WORDS = random.Random(0)
ROWS = [
    {"input": "".join(_WORDS.choices("abcdefghij klmnop", k=60)), "label": [str(n)]}
    for n in range(3000)
]


def _lines(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def _parquet(folder: Path) -> Path:
    return write_parquet(folder / "rows.parquet", ROWS, group=500)


def _one_group(folder: Path) -> Path:
    return write_parquet(folder / "rows.parquet", ROWS, group=5000)


def _shards(folder: Path) -> Path:
    write_parquet(folder / "train-00000-of-00002.parquet", ROWS[:1400])
    return write_parquet(folder / "train-00001-of-00002.parquet", ROWS[1400:])


def _dataset(folder: Path) -> Path:
    return write_dataset(folder / "saved", [ROWS], batch=500) / "data-00000-of-00001.arrow"


@pytest.mark.parametrize(
    ("write", "at", "where"),
    [
        (_lines, 0.5, r"rows.jsonl line 15\d\d is not a JSON object"),
        (
            _parquet,
            0.5,
            r"rows.parquet row 1501 cannot be read, nor the rows that share its page: ",
        ),
        (_one_group, 0.5, r"rows.parquet row \d+ cannot be read, nor"),
        (_shards, 0.9, r"train-00001-of-00002.parquet row \d+ cannot be read, nor"),
        (
            _dataset,
            0.52,
            r"saved rows 1501 to 2000 \(data-00000-of-00001.arrow\) cannot be read: ",
        ),
    ],
)
def test_damage_in_the_middle_is_told_with_file_and_row(
    write: Callable[[Path], Path], at: float, where: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    named = path if write in (_lines, _parquet, _one_group) else path.parent
    assert check_rows(RowSource(named)) == []
    content = bytearray(path.read_bytes())
    begin = int(len(content) * at)
    content[begin : begin + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(DataError, match=where):
        check_rows(RowSource(named))


def test_offsets_of_a_dataset_that_point_anywhere_do_not_end_the_process(tmp_path: Path) -> None:
    path = _dataset(tmp_path)
    content = bytearray(path.read_bytes())
    begin = content.index(b"".join(n.to_bytes(4, "little") for n in (0, 60, 120, 180)))
    content[begin + 400 : begin + 408] = b"\0\0\0\x70\0\0\0\x70"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"saved rows 1 to 500 \(data-.*\) cannot be read: "):
        open_rows(path.parent).read(101)


def test_the_head_of_a_batch_that_is_damaged_is_told_with_the_rows_before_it(
    tmp_path: Path,
) -> None:
    path = _dataset(tmp_path)
    content = bytearray(path.read_bytes())
    head = content.index(b"\xff\xff\xff\xff", len(content) * 2 // 5)
    content[head + 4 : head + 8] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"arrow is cut off or damaged behind its row 1500:"):
        RowSource(path.parent)


def test_a_page_that_is_not_what_its_checksum_says_is_damaged(tmp_path: Path) -> None:
    path, table = tmp_path / "rows.parquet", pa.Table.from_pylist(ROWS)
    options = {"compression": "NONE", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=500, **options)
    content = path.read_bytes()
    text = str(ROWS[1700]["input"]).encode()
    assert content.count(text) == 1
    path.write_bytes(content.replace(text, text.upper()))
    with pytest.raises(AgentRLError, match=r"row 1501 cannot be read, .*CRC"):
        check_rows(RowSource(path))


@pytest.mark.parametrize("write", [_lines, _parquet, _shards, _dataset])
@pytest.mark.parametrize("part", ["", "@[7:1900]", "@[1399:1402]", "@[-20:]"])
def test_rows_in_turn_are_those_that_are_read_one_by_one(
    write: Callable[[Path], Path], part: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    source = RowSource(f"{path if write in (_lines, _parquet) else path.parent}{part}")
    assert list(source.first()) == [source.at(index) for index in range(len(source))]
