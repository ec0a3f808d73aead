"""`--data-source-path` over the end of a run and its continuation: nothing lost, nothing twice."""

from pathlib import Path

import anyio
import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.envs.registry import load_env
from agentrl.envs.slime_source import SlimeSource
from agentrl.envs.slime_stand_in.data_source import RolloutDataSourceWithBuffer
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.envs.tasks import open_source, open_tasks
from agentrl.errors import DataError, StoreError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
HEAD = """
import json, os, pathlib, random
from slime.rollout.data_source import *
from slime.utils.types import Sample


def groups(numbers):
    return [[Sample(prompt=f"{i}?", label=str(i))] for i in numbers]

"""
COUNTS = """
class Source:
    def __init__(self, args): self.args, self.at = args, 0
    def get_samples(self, n):
        self.at += n
        return groups(range(self.at - n, self.at))
"""
#: Where it stands is in a file for each `save`, as slime's own have it.
SAVES = (
    COUNTS
    + """
    def save(self, rollout_id):
        pathlib.Path(self.args.save, f"state_{rollout_id}.json").write_text(str(self.at))
    def load(self, rollout_id=None):
        self.at = int(pathlib.Path(self.args.load, f"state_{rollout_id}.json").read_text())
"""
)
#: It draws in an order that nothing repeats, and knows what it has drawn.
DRAWS = """
class Source:
    def __init__(self, args): self.args, self.left = args, list(range(40))
    def get_samples(self, n):
        random.SystemRandom().shuffle(self.left)
        given, self.left = self.left[:n], self.left[n:]
        return groups(given)
    def save(self, rollout_id):
        pathlib.Path(self.args.save, f"left_{rollout_id}").write_text(json.dumps(self.left))
    def load(self, rollout_id=None):
        self.left = json.loads(pathlib.Path(self.args.load, f"left_{rollout_id}").read_text())
"""
#: A queue that is emptied by asking, whoever asks.
QUEUE = """
class Source:
    def __init__(self, args):
        if not os.path.exists("queue"): self.put(list(range(24)))
    def put(self, left): pathlib.Path("queue").write_text(json.dumps(left))
    def get_samples(self, n):
        left = json.loads(pathlib.Path("queue").read_text())
        self.put(left[n:])
        return groups(left[:n])
    def save(self, rollout_id): pathlib.Path("log").open("a").write(f"save {rollout_id}\\n")
    def load(self, rollout_id=None): pathlib.Path("log").open("a").write(f"load {rollout_id}\\n")
"""
#: `save` and `load` do nothing that helps.
FORGETS = (
    COUNTS
    + """
    def save(self, rollout_id): print("saved", end="")
    def load(self, rollout_id=None): print("loaded", end="")
"""
)
#: As slime's abstract class wants them, and they do nothing.
STUBS = (
    COUNTS
    + """
    def save(self, rollout_id): pass
    def load(self, rollout_id=None):
        '''There is nothing to load.'''
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"q": "{i}?", "a": "{i}"}}\n' for i in range(6)]
    Path("rows.jsonl").write_text("".join(lines))


def parsed(body: str, flags: str = "", batch: int = 4) -> RunConfig:
    name = f"mine{len(list(Path.cwd().glob('mine*.py')))}.py"
    Path(name).write_text(HEAD + body)
    base = f"--hf-checkpoint {MODEL} --rollout-max-response-len 64 --rollout-batch-size {batch}"
    base += " --n-samples-per-prompt 2 --device cpu --num-rollout 5 --rm-type math"
    found: Resolved = parse(f"{base} --data-source-path {name} {flags}".split(), "train_async")
    return found.config


def life(config: RunConfig, cursor: int, number: int) -> list[str]:
    """The tasks of one process of a run, from its durable position on; then it is killed."""
    return asked(SlimeSource(config, Path("run/source")), cursor, number)


def asked(source: SlimeSource, cursor: int, number: int) -> list[str]:
    async def take() -> list[str]:
        found: list[str] = []
        async for task in source.tasks(cursor):
            assert task.id == f"sample:{cursor + len(found)}"
            found.append(str(task.row["input"]).rstrip("?"))
            if len(found) == number:
                break
        return found

    return anyio.run(take)


@pytest.mark.parametrize("body", [COUNTS, SAVES, DRAWS, QUEUE, STUBS])
def test_each_task_is_given_once_over_two_kills(body: str) -> None:
    """Six are begun when the first program is killed, which has taken eight; then eleven are, of
    which two were given before and never begun."""
    config = parsed(body)
    given = life(config, 0, 8)[:6]
    given += life(config, 6, 7)[:5]
    given += life(config, 11, 9)
    assert len(given) == 20
    assert len(set(given)) == 20
    if body != DRAWS:
        assert given == [str(n) for n in range(20)]


@pytest.mark.parametrize("body", [COUNTS, SAVES, DRAWS, QUEUE])
def test_a_cursor_that_jumps_back_in_one_process_gets_the_same_tasks(body: str) -> None:
    """As when the buffer is restarted, and what it held in memory is gone."""
    source = SlimeSource(parsed(body), Path("run/source"))
    first = asked(source, 0, 10)
    assert asked(source, 7, 3) == first[7:]
    assert len({*first, *asked(source, 10, 6)}) == 16


def test_a_source_is_saved_when_it_has_been_asked_and_loaded_when_a_run_goes_on() -> None:
    config = parsed(QUEUE)
    life(config, 0, 5)
    assert Path("log").read_text().split() == ["save", "0", "save", "1", "save", "2"]
    Path("log").write_text("")
    life(config, 5, 3)
    assert Path("log").read_text().split() == ["load", "2", "save", "3"]


@pytest.mark.parametrize("body", [COUNTS, SAVES])
def test_another_batch_size_changes_nothing(body: str) -> None:
    given = life(parsed(body), 0, 6)
    given += life(parsed(body, batch=3), 6, 7)
    assert given == [str(n) for n in range(13)]


def test_rows_are_compared_as_json_has_them() -> None:
    body = (
        COUNTS.replace("groups(", "odd(")
        + """
def odd(numbers):
    meta = {1: float("nan"), "when": (1, 2)}
    return [[Sample(prompt=f"{i}?", label=str(i), metadata=meta)] for i in numbers]
"""
    )
    config = parsed(body)
    assert life(config, 0, 6) + life(config, 6, 6) == [str(n) for n in range(12)]


def test_a_source_that_begins_again_in_spite_of_its_load_ends_the_run() -> None:
    config = parsed(FORGETS)
    life(config, 0, 8)
    with pytest.raises(DataError, match=r"after load\(2\) it gives what it gave at the very begin"):
        life(config, 8, 1)


@pytest.mark.parametrize("num_rows", [4, 8, 12])
def test_rows_that_begin_again_with_an_epoch_are_no_such_thing(num_rows: int) -> None:
    numbers = "range(self.at - n, self.at)"
    config = parsed(SAVES.replace(numbers, f"[i % {num_rows} for i in {numbers}]"))
    assert life(config, 0, 12) + life(config, 12, 6) == [str(i % num_rows) for i in range(18)]


def test_an_order_that_does_not_follow_from_the_seed_ends_the_run() -> None:
    body = DRAWS[: DRAWS.index("    def save")]
    config = parsed(body)
    life(config, 0, 8)
    with pytest.raises(DataError, match=r"gives other groups than before, from group 0 on.*save"):
        life(config, 8, 1)


def test_a_place_that_nobody_wrote_down_ends_the_run() -> None:
    with pytest.raises(DataError, match=r"has begun 4 groups, and .*source knows of 0"):
        life(parsed(SAVES), 4, 1)
    assert life(parsed(COUNTS), 4, 2) == ["4", "5"]  # begun before there were journals


def test_a_line_that_a_power_cut_left_unfinished_was_given_to_nobody() -> None:
    config, journal = parsed(SAVES), Path("run/source/given.jsonl")
    life(config, 0, 8)
    journal.write_bytes(journal.read_bytes()[:-20])
    assert life(config, 4, 12) == [str(n) for n in range(4, 16)]
    journal.write_bytes(b"{}\n" + journal.read_bytes())
    with pytest.raises(StoreError, match=r"given\.jsonl: line 1 is spoilt"):
        life(config, 4, 1)


def test_rows_of_a_subclass_are_found_by_what_it_inherits() -> None:
    """`save` and `load` of slime's own classes are there to be called, with the buffer too."""
    body = """
class Source(RolloutDataSourceWithBuffer):
    def get_samples(self, n):
        given = super().get_samples(n)
        if self.sample_offset == 4: self.add_samples(given[:1])
        return given
    def save(self, rollout_id): super().save(rollout_id)
    def load(self, rollout_id=None): super().load(rollout_id)
"""
    flags = "--prompt-data rows.jsonl --input-key q --label-key a"
    config = parsed(body, flags)
    once = of_rows(config, Path("whole"), 0, 12)
    halves = of_rows(config, Path("halves"), 0, 4) + of_rows(config, Path("halves"), 4, 8)
    assert halves == once
    assert once[:8] == ["0?", "1?", "2?", "3?", "0?", "4?", "5?", "0?"]


def of_rows(config: RunConfig, folder: Path, cursor: int, number: int) -> list[str]:
    async def take() -> list[str]:
        tasks = SlimeSource(config, folder).tasks(cursor)
        return [(await anext(tasks)).row["q"] for _ in range(number)]

    return anyio.run(take)


def test_a_buffer_comes_back_as_it_was() -> None:
    config = parsed(COUNTS, "--prompt-data rows.jsonl --input-key q --label-key a")

    class Where:
        save = load = "state"

        def __getattr__(self, name: str) -> object:
            return getattr(config, name)

    source = RolloutDataSourceWithBuffer(Where())
    source.add_samples([[Sample(prompt="kept", status=Sample.Status.ABORTED, metadata={"n": 1})]])
    source.save(3)
    other = RolloutDataSourceWithBuffer(Where())
    other.load(3)
    assert other.buffer == source.buffer


def test_nobody_but_the_run_asks_a_source_that_keeps_its_place() -> None:
    preflight(parsed(QUEUE))
    assert not Path("queue").exists()
    with pytest.raises(DataError, match="get_samples"):
        preflight(parsed(COUNTS.replace("self.at += n", "1 / 0")))


def test_parts_of_a_mixture_keep_their_places_apart() -> None:
    Path("mine.py").write_text(HEAD + SAVES)
    Path("mix.yaml").write_text(
        "defaults: {data_source_path: mine.py, rm_type: math}\n"
        "parts:\n- {name: a, reward_key: a}\n- {name: b, reward_key: b}\n"
    )
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 --num-rollout 5"
    config = parse(f"{words} --env-mix mix.yaml".split(), "train_async").config

    async def take(cursor: int, number: int) -> list[str]:
        tasks = open_tasks(config, load_env("single-turn"), Path("run")).source.tasks(cursor)
        return [(await anext(tasks)).row["input"] for _ in range(number)]

    given = anyio.run(take, 0, 5) + anyio.run(take, 5, 5)
    assert sorted(given) == sorted(f"{n}?" for n in range(5) for _ in "ab")
    assert {path.name for path in Path("run/source").iterdir()} == {"part-a", "part-b"}
    assert open_source(config, load_env("single-turn")) is not None
