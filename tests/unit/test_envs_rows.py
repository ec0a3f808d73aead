"""Parquet and Hugging Face datasets give the tasks that JSONL gives, in the same order."""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task
from tests.unit.row_files import write_dataset, write_parquet

pytestmark = pytest.mark.slow

ROWS = [
    {"input": f"{n}?", "reward_model": {"ground_truth": {"target": [str(n)]}}} for n in range(250)
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written_as_lines(folder: Path) -> Path:
    return write_jsonl(folder / "train", ROWS)


def written_as_parquet(folder: Path) -> Path:
    return write_parquet(folder / "train.parquet", ROWS, group=100)


def written_as_shards(folder: Path) -> Path:
    write_parquet(folder / "rows" / "train-00000-of-00002.parquet", ROWS[:130], group=70)
    write_parquet(folder / "rows" / "train-00001-of-00002.parquet", ROWS[130:], group=70)
    return folder / "rows"


def written_as_dataset(folder: Path) -> Path:
    return write_dataset(folder / "saved" / "train", [ROWS[:90], ROWS[90:]], batch=40)


OTHERS = [written_as_parquet, written_as_shards, written_as_dataset]


def taken(source: RowSource, cursor: int = 0, count: int = 10_000) -> list[Task]:
    async def take() -> list[Task]:
        found: list[Task] = []
        async for task in source.tasks(cursor):
            found.append(task)
            if len(found) == count:
                break
        return found

    return anyio.run(take)


def rows_of(tasks: list[Task]) -> list[dict[str, Any]]:
    return [task.row for task in tasks]


@pytest.mark.parametrize("write", OTHERS)
@pytest.mark.parametrize("part", ["", "@[7:150]", "@[-20:]"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_format_gives_the_rows_of_the_lines_in_their_order(
    tmp_path: Path, write: Callable[[Path], Path], part: str, shuffle: bool
) -> None:
    lines = RowSource(f"{written_as_lines(tmp_path)}{part}", seed=5, shuffle=shuffle, num_epoch=2)
    other = RowSource(f"{write(tmp_path)}{part}", seed=5, shuffle=shuffle, num_epoch=2)
    assert rows_of(taken(other)) == rows_of(taken(lines))
    assert rows_of(taken(other, cursor=17, count=9)) == rows_of(taken(lines, cursor=17, count=9))


@pytest.mark.parametrize("write", OTHERS)
def test_the_id_of_a_task_is_the_same_in_any_slice(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    whole = [task.id for task in taken(RowSource(path))]
    assert len(set(whole)) == len(ROWS)
    assert [task.id for task in taken(RowSource(f"{path}@[128:133]"))] == whole[128:133]


def test_a_pattern_names_shards(tmp_path: Path) -> None:
    folder = written_as_shards(tmp_path)
    write_parquet(folder / "test-00000-of-00001.parquet", ROWS[:3])
    assert rows_of(taken(RowSource(folder / "train-*.parquet"))) == ROWS
    with pytest.raises(ConfigError, match=r"several sets \(test, train\); name those of one"):
        RowSource(folder)


def test_values_become_what_json_has(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row = {
        "day": day,
        "moment": moment,
        "length": datetime.timedelta(seconds=90),
        "price": Decimal("3.50"),
        "raw": b"text",
        "nan": float("nan"),
        "nothing": None,
        "deep": [{"a": [1, 2.5, True]}],
    }
    table = pa.Table.from_pylist([row])
    kinds = pa.array(["x"]).dictionary_encode()
    table = table.append_column("category", kinds)
    table = table.append_column("pairs", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())))
    pq.write_table(table, tmp_path / "rows.parquet")
    (task,) = taken(RowSource(tmp_path / "rows.parquet"))
    assert task.row == {
        "day": "2026-01-02",
        "moment": "2026-01-02T03:04:05+00:00",
        "length": 90.0,
        "price": "3.50",
        "raw": "text",
        "nan": None,
        "nothing": None,
        "deep": [{"a": [1, 2.5, True]}],
        "category": "x",
        "pairs": [["k", 1]],
    }
    assert json.loads(json.dumps(task.row)) == task.row


@pytest.mark.parametrize("write", [write_parquet, lambda path, rows: write_dataset(path, [rows])])
def test_a_value_that_no_row_can_hold_is_named_by_row_key_and_type(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    rows = [{"images": [{"bytes": b"ok"}]}, {"images": [{"bytes": b"\x89PNG\xff"}]}]
    source = RowSource(write(tmp_path / "rows.parquet", rows))
    said = r"rows\.parquet row 2: 'images\[0\]\.bytes' is 5 bytes that are no text"
    with pytest.raises(DataError, match=said):
        source.check(2)


def test_a_required_key_may_stand_inside_of_another_value(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", ROWS)
    RowSource(path, required_keys=["reward_model.ground_truth"]).check(3)
    source = RowSource(path, required_keys=["reward_model.truth"])
    said = r"rows\.parquet row 1 lacks \['reward_model.truth'\]; it has \['input', 'reward_model'\]"
    with pytest.raises(DataError, match=said):
        source.check(3)


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-40])
    return path


def test_a_parquet_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = cut(written_as_parquet(tmp_path))
    with pytest.raises(ConfigError, match=r"train\.parquet is no whole Parquet file"):
        RowSource(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"train\.parquet is no whole Parquet file"):
        RowSource(path)


def test_a_parquet_file_that_is_damaged_inside_is_named_at_the_row(tmp_path: Path) -> None:
    path = written_as_parquet(tmp_path)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.parquet row 1 cannot be read"):
        RowSource(path).check(3)


def test_shards_of_other_columns_are_refused_before_any_row(tmp_path: Path) -> None:
    folder = written_as_shards(tmp_path)
    write_parquet(folder / "train-00001-of-00002.parquet", [{"input": 3, "label": "x"}])
    with pytest.raises(ConfigError, match=r"00001-of-00002\.parquet has other columns than"):
        RowSource(folder)
    saved = write_dataset(tmp_path / "saved", [ROWS[:2], [{"input": "x"}]])
    with pytest.raises(ConfigError, match=r"'reward_model' is missing there"):
        RowSource(saved)


def test_a_folder_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    folder = written_as_shards(tmp_path)
    (folder / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(ConfigError, match="holds 1 of 2 shards"):
        RowSource(folder)


def test_a_dataset_with_splits_names_them(tmp_path: Path) -> None:
    folder = written_as_dataset(tmp_path).parent
    write_dataset(folder / "test", [ROWS[:2]])
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"holds the splits test, train; name one: \S+/saved/"):
        RowSource(folder)


@pytest.mark.parametrize("size", [-9, -4000])
def test_a_dataset_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    folder = written_as_dataset(tmp_path)
    shard = folder / "data-00001-of-00002.arrow"
    shard.write_bytes(shard.read_bytes()[:size])
    with pytest.raises(ConfigError, match="cut off"):
        RowSource(folder)


def test_a_dataset_that_was_cut_off_between_two_batches_is_refused(tmp_path: Path) -> None:
    shard = written_as_dataset(tmp_path) / "data-00001-of-00002.arrow"
    end = b"\xff\xff\xff\xff\0\0\0\0"
    assert shard.read_bytes().endswith(end)
    shard.write_bytes(shard.read_bytes().removesuffix(end))
    with pytest.raises(ConfigError, match=r"00001-of-00002\.arrow is cut off or damaged"):
        RowSource(tmp_path / "saved" / "train")


def test_a_dataset_of_which_rows_were_chosen_is_read(tmp_path: Path) -> None:
    """`select`, `filter` and `train_test_split` leave the count of the whole set beside theirs."""
    folder = written_as_dataset(tmp_path)
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"]["train"]["num_examples"] = 10_000
    (folder / "dataset_info.json").write_text(json.dumps(info))
    assert rows_of(taken(RowSource(folder))) == ROWS


def test_shards_of_one_name_in_several_folders_have_tasks_of_different_ids(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_parquet(tmp_path / part / "train.parquet", ROWS[:2])
    found = taken(RowSource(str(tmp_path / "*" / "train.parquet")))
    assert [task.id for task in found] == ["a/train:1", "a/train:2", "b/train:1", "b/train:2"]


@pytest.mark.parametrize("name", ["", "*.jsonl"])
def test_shards_of_jsonl_are_one_set_in_the_order_of_their_names(name: str, tmp_path: Path) -> None:
    for number, rows in enumerate((ROWS[:2], [], ROWS[2:])):
        write_jsonl(tmp_path / f"train-{number}.jsonl", rows)
    source = RowSource(f"{tmp_path}/{name}")
    found = taken(source)
    assert rows_of(found) == ROWS
    assert [task.id for task in found][:3] == ["train-0:1", "train-0:2", "train-2:1"]
    (tmp_path / "train-1.jsonl").unlink()
    (tmp_path / "train-2.jsonl").unlink()
    assert rows_of(taken(RowSource(f"{tmp_path}/{name}"))) == ROWS[:2]


def test_a_folder_of_both_formats_is_refused_and_so_are_several_sets(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", ROWS[:2])
    write_jsonl(tmp_path / "eval.jsonl", ROWS[:2])
    with pytest.raises(ConfigError, match=r"several sets \(eval, train\); .*/train\*\.jsonl"):
        RowSource(tmp_path)
    write_parquet(tmp_path / "train.parquet", ROWS[:2])
    with pytest.raises(ConfigError, match=r"as Parquet \(train\.parquet\) and as JSONL \(eval"):
        RowSource(tmp_path)
    (tmp_path / "held" / "more.jsonl").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"more\.jsonl too, which is a directory"):
        RowSource(tmp_path / "held")


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.duration("s")])
@pytest.mark.parametrize("write", ["parquet", "arrow"])
def test_a_time_that_python_cannot_hold_is_the_fault_of_its_row(
    write: str, kind: pa.DataType, tmp_path: Path
) -> None:
    table = pa.table({"input": ["a", "b"], "when": pa.array([0, 10**14], pa.int64()).cast(kind)})
    if write == "parquet":
        pq.write_table(table, tmp_path / "train.parquet")
        path = tmp_path / "train.parquet"
    else:
        path = write_dataset(tmp_path / "train", [[{"input": "a"}]])
        with pa.ipc.new_stream(path / "data-00000-of-00001.arrow", table.schema) as out:
            out.write_table(table)
    source = RowSource(path)
    assert len(taken(source, count=1)) == 1
    with pytest.raises(DataError, match=r"row 2 cannot be read"):
        source.check(2)


def test_words_that_a_dictionary_stands_for_are_read_within_values_too(tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table(
        {
            "input": words,
            "inner": pa.StructArray.from_arrays([words], ["word"]),
            "list": pa.ListArray.from_arrays([0, 1, 3, 3], words),
        }
    )
    pq.write_table(table, tmp_path / "train.parquet")
    assert rows_of(taken(RowSource(tmp_path / "train.parquet"))) == table.to_pylist()


def test_a_dataset_that_lacks_a_file_or_has_an_index_is_refused(tmp_path: Path) -> None:
    folder = written_as_dataset(tmp_path)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(
        json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]})
    )
    with pytest.raises(ConfigError, match="flatten_indices"):
        RowSource(folder)
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ConfigError, match="cannot read the tasks of"):
        RowSource(folder)
    (folder / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"state\.json is not what `save_to_disk`"):
        RowSource(folder)


def test_a_folder_of_something_else_says_what_it_should_be(tmp_path: Path) -> None:
    write_parquet(tmp_path / "repository" / "data" / "train.parquet", ROWS[:2])
    said = r"nor JSONL files nor the state\.json .*; its folder data holds some: \S+/data"
    with pytest.raises(ConfigError, match=said):
        RowSource(tmp_path / "repository")


@pytest.mark.parametrize("write", OTHERS)
def test_a_set_that_changes_under_a_run_is_refused(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    source = RowSource(path)
    (file,) = [path] if path.is_file() else sorted(path.glob("*-of-*"))[:1]
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(DataError, match="changed while the run"):
        taken(source)


@pytest.mark.parametrize("write", [write_parquet, lambda path, rows: write_dataset(path, [rows])])
def test_no_rows_are_no_tasks(tmp_path: Path, write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="holds no tasks"):
        RowSource(write(tmp_path / "rows.parquet", []))


#: Reads rows in a shuffled order with room for a part of the file only.
READER = """
import resource, sys
from itertools import islice
import anyio
from agentrl.envs.sources import RowSource

async def read(source):
    tasks, total = source.tasks(), 0
    for _ in range(2000):
        total += len((await anext(tasks)).row["text"])
    return total

warm, path, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
anyio.run(read, RowSource(warm, num_epoch=None))
with open("/proc/self/status") as status:
    now = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (now + room, now + room))
print(anyio.run(read, RowSource(path, shuffle=True)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("is_parquet", [True, False])
def test_a_set_that_is_larger_than_memory_is_read_by_position(
    tmp_path: Path, is_parquet: bool
) -> None:
    num, size, room = 20_000, 8_000, 48 * 2**20
    rows = [{"text": f"{n:08}" * (size // 8)} for n in range(num)]
    assert num * size > 3 * room

    def write(name: str, part: list[dict[str, Any]]) -> Path:
        place = tmp_path / name
        return write_parquet(place, part, group=num) if is_parquet else write_dataset(place, [part])

    places = [write("warm.parquet", rows[:100]), write("rows.parquet", rows)]
    del rows
    command = [sys.executable, "-c", READER, *map(str, places), str(room)]
    # Arrow's own allocator takes a gigabyte of addresses at once, used or not
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert done.stdout == f"{2000 * size}\n", done.stderr
