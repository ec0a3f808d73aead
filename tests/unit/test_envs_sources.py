from itertools import islice
from pathlib import Path

import pytest

from agentrl.envs import RowSource
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task, TaskSource

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five rows and a blank line."""
    made = tmp_path / "facts.jsonl"
    made.write_text('{"n": 1}\n{"n": 2}\n\n{"n": 3}\n{"n": 4}\r\n{"n": "fünf"}', encoding="utf-8")
    return made


async def take(source: TaskSource, cursor: int = 0, count: int = 100) -> list[Task]:
    found: list[Task] = []
    async for task in source.tasks(cursor):
        found.append(task)
        if len(found) == count:
            break
    return found


async def test_rows_become_tasks_named_by_file_and_line(path: Path) -> None:
    assert await take(RowSource(path)) == [
        Task("facts:1", {"n": 1}),
        Task("facts:2", {"n": 2}),
        Task("facts:4", {"n": 3}),
        Task("facts:5", {"n": 4}),
        Task("facts:6", {"n": "fünf"}),
    ]


async def test_a_cursor_resumes_anywhere_in_any_epoch(path: Path) -> None:
    source = RowSource(path, seed=7, shuffle=True, num_epoch=3)
    everything = await take(source)
    assert len(everything) == 15
    for cursor in range(17):
        assert await take(source, cursor) == everything[cursor:]


async def test_epochs_are_shuffled_by_the_seed_and_keep_their_ids(path: Path) -> None:
    source = RowSource(path, seed=1, shuffle=True, num_epoch=2)
    tasks = await take(source)
    first, second = tasks[:5], tasks[5:]
    assert first != second
    assert {task.id for task in first} == {task.id for task in second}
    assert tasks == await take(RowSource(path, seed=1, shuffle=True, num_epoch=2))
    assert tasks != await take(RowSource(path, seed=3, shuffle=True, num_epoch=2))


async def test_without_a_number_of_epochs_it_goes_on(path: Path) -> None:
    tasks = await take(RowSource(path, num_epoch=None), count=12)
    assert [task.id for task in tasks[10:]] == [task.id for task in islice(tasks, 2)]


@pytest.mark.parametrize(
    ("suffix", "lines"),
    [("@[1:3]", [2, 4]), ("@[:2]", [1, 2]), ("@[-2:]", [5, 6]), ("@[:]", [1, 2, 4, 5, 6])],
)
async def test_a_slice_takes_rows_and_keeps_their_ids(
    path: Path, suffix: str, lines: list[int]
) -> None:
    source = RowSource(f"{path}{suffix}")
    assert len(source) == len(lines)
    assert [task.id for task in await take(source)] == [f"facts:{line}" for line in lines]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{oops", "line 2 is not a JSON object"),
        (b"[1]", "line 2 is not a JSON object"),
        (b'{"n": "\xff"}', "line 2 is not a JSON object"),
        (b'{"n": ' + b"[" * 100_000, "line 2 is not a JSON object"),
        (b'{"m": 1}', r"line 2 lacks \['n'\]; it has \['m'\]"),
    ],
)
async def test_a_bad_row_is_named_when_it_is_reached(
    tmp_path: Path, row: bytes, message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"n": 1}\n' + row + b"\n")
    source = RowSource(path, required_keys=["n"])
    assert len(await take(source, count=1)) == 1
    with pytest.raises(DataError, match=message):
        await take(source)


@pytest.fixture
def source_of_a_changed_file(path: Path) -> RowSource:
    source = RowSource(path)
    path.write_text('{"n": 1}\n' * 7, encoding="utf-8")
    return source


async def test_a_file_that_changed_is_refused(source_of_a_changed_file: RowSource) -> None:
    with pytest.raises(DataError, match="changed while the run"):
        await take(source_of_a_changed_file)


@pytest.mark.parametrize("suffix", ["@[3:2]", "@[9:]"])
def test_an_empty_slice_is_refused(path: Path, suffix: str) -> None:
    with pytest.raises(ConfigError, match="holds no tasks"):
        RowSource(f"{path}{suffix}")


def test_a_file_that_cannot_give_tasks_is_refused_at_once(tmp_path: Path, path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tasks of .*none\.jsonl: there is no file .*none"):
        RowSource(tmp_path / "none.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot read the tasks"):
        RowSource(tmp_path / "folder")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"empty\.jsonl holds no tasks"):
        RowSource(empty)
    with pytest.raises(ConfigError, match="malformed slice"):
        RowSource(f"{path}@[1]")


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (b'[{"n": 1},\n{"n": 2}]', "looks like one JSON array: write one object a line"),
        (b'{\n  "n": 1\n}\n', "looks like one object over many lines"),
        (b'\xef\xbb\xbf{"n": 1}\n', "begins with a byte order mark"),
        (b"\x1f\x8b\x08\x00rest", "is compressed"),
        (b"ARROW1\x00\x00rest", "is Arrow: name the folder"),
    ],
)
def test_a_file_of_another_format_is_recognised(
    tmp_path: Path, content: bytes, advice: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"rows.jsonl line 1 is not a JSON object: .*{advice}"):
        RowSource(path).check(1)


def test_a_check_reads_the_rows_of_the_slice_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('oops\n{"n": 1}\n{"n": 2}\noops\n')
    RowSource(f"{path}@[1:]").check(2)
    with pytest.raises(DataError, match="line 4"):
        RowSource(f"{path}@[1:]").check(3)
    with pytest.raises(DataError, match="line 1"):
        RowSource(path).check(1)


def test_a_check_remarks_on_the_first_row_that_lacks_what_the_first_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1, "of": 2}\n{"of": 3, "n": 2, "more": 1}\n\n{"nn": 2}\n{}\n')
    assert not any("lacks" in note for note in RowSource(path).check(2))
    assert RowSource(path).check() == [f"{path} line 4 lacks n, of, which the first row has"]


def test_a_check_says_how_many_rows_it_has_read_where_some_are_left(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n' * 5)
    assert RowSource(path).check(5) == []
    for limits, num in (((3,), 3), ((None, 0.0), 1)):
        (note,) = RowSource(path).check(*limits)
        assert note.startswith(f"the first {num} of 5 rows of {path} were read; a later one that")
