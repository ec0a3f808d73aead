"""`--data-source-path`: training tasks from a class in slime's signature."""

import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.envs.check.preflight import preflight
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_source
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.types import Task

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
HEAD = "from slime.rollout.data_source import *\nfrom slime.utils.types import Sample\n"
COUNTING = """
class Source(DataSource):
    def __init__(self, args):
        self.args, self.given = args, 0

    def get_samples(self, num_samples):
        number = min(num_samples, 10 - self.given)
        groups = []
        for i in range(self.given, self.given + number):
            one = Sample(prompt=f"{i}?", label=str(i), metadata={"level": i})
            groups.append([one] * self.args.n_samples_per_prompt)
        self.given += number
        return groups
"""
WITH_BUFFER = """
class Twice(RolloutDataSourceWithBuffer):
    def get_samples(self, num_samples):
        groups = super().get_samples(num_samples)
        if not self.buffer:
            self.add_samples(groups[:1])
        return groups
"""


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"q": "{i}?", "a": "{i}", "info": {{"n": {i}}}}}\n' for i in range(6)]
    Path("rows.jsonl").write_text("".join(lines))


def parsed(body: str, flags: str = "", name: str = "mine.py") -> Resolved:
    Path(name).write_text(HEAD + body)
    base = f"--hf-checkpoint {MODEL} --rollout-max-response-len 64 --rollout-batch-size 4"
    base += " --n-samples-per-prompt 2 --device cpu --num-rollout 5 --rm-type math"
    return parse(f"{base} --data-source-path {name} {flags}".split(), "train_async")


def tasks_of(run: Resolved, number: int = 100, cursor: int = 0) -> list[Task]:
    source = open_source(run.config, load_env(str(run.config.env)))

    async def take() -> list[Task]:
        with anyio.fail_after(100):
            return [task async for task in first(source.tasks(cursor), number)]

    return anyio.run(take)


async def first(tasks: AsyncIterator[Task], number: int) -> AsyncIterator[Task]:
    while number and (task := await anext(tasks, None)) is not None:
        yield task
        number -= 1


def test_a_run_has_the_tasks_that_a_class_of_the_user_gives() -> None:
    run = parsed(COUNTING, "--data-source-path mine.py:Source")
    assert run.config.env == "single-turn"
    tasks = tasks_of(run)
    assert [task.row["input"] for task in tasks] == [f"{i}?" for i in range(10)]
    assert tasks[3].row == {"input": "3?", "label": "3", "metadata": {"level": 3}}
    assert len({task.id for task in tasks}) == 10


def test_a_run_that_goes_on_finds_its_place() -> None:
    run = parsed(COUNTING)
    assert tasks_of(run, cursor=7) == tasks_of(run)[7:]


def test_a_subclass_adds_to_the_rows_of_the_run() -> None:
    """Rows come as a run without the class would have them, after what was put back."""
    flags = "--prompt-data rows.jsonl --input-key q --label-key a --metadata-key info"
    run = parsed("class Rows(RolloutDataSource): pass", f"{flags} --rollout-shuffle")
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 {flags}"
    plain = parse(f"{words} --rollout-shuffle --num-rollout 5".split(), "train_async")
    alike = [(task.row["q"], task.row["a"], task.row["metadata"]) for task in tasks_of(plain, 20)]
    assert [(t.row["q"], t.row["a"], t.row["metadata"]) for t in tasks_of(run, 20)] == alike
    twice = tasks_of(parsed(WITH_BUFFER, flags, "twice.py"), 6)
    assert [task.row["q"] for task in twice] == ["0?", "1?", "2?", "3?", "0?", "4?"]


def test_rows_end_with_their_epochs() -> None:
    flags = "--prompt-data rows.jsonl --input-key q --label-key a --num-epoch 2"
    body = "class Rows(RolloutDataSource): pass"
    config = msgspec.structs.replace(parsed(body, flags).config, num_rollout=None)
    run = Resolved(config, [])
    assert len(tasks_of(run)) == 12


def test_tools_of_a_row_reach_its_task() -> None:
    Path("rows.jsonl").write_text('{"q": "?", "a": "1", "tools": [{"name": "t"}]}\n')
    flags = "--prompt-data rows.jsonl --input-key q --label-key a"
    (task,) = tasks_of(parsed("class Rows(RolloutDataSource): pass", flags), 1)
    assert task.row["tools"] == [{"name": "t"}]


def test_what_cannot_be_sent_is_told_with_its_group() -> None:
    body = COUNTING.replace('metadata={"level": i}', 'metadata={"level": object() if i > 2 else i}')
    with pytest.raises(DataError, match=r"--data-source-path mine\.py: the row of task sample:3"):
        tasks_of(parsed(body))


def test_a_part_with_other_rows_has_a_source_of_its_own() -> None:
    Path("more.jsonl").write_text('{"q": "more?", "a": "1"}\n')
    Path("mine.py").write_text(HEAD + "class Rows(RolloutDataSource): pass")
    Path("mix.yaml").write_text(
        "defaults: {data_source_path: mine.py, input_key: q, label_key: a, rm_type: math}\n"
        "parts:\n- {name: a, prompt_data: rows.jsonl}\n- {name: b, prompt_data: more.jsonl}\n"
    )
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 --num-rollout 5"
    run = parse(f"{words} --env-mix mix.yaml".split(), "train_async")
    assert [task.row["q"] for task in tasks_of(run, 4)] == ["0?", "more?", "1?", "more?"]


@pytest.mark.parametrize("name", ["RolloutDataSource", "RolloutDataSourceWithBuffer"])
def test_slimes_own_are_the_rows_of_the_run(name: str) -> None:
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 --num-rollout 5"
    words += f" --prompt-data rows.jsonl --data-source-path slime.rollout.data_source.{name}"
    run = parse(words.split(), "train_async")
    assert any("already so: rows come from --prompt-data" in note for note in run.notes)
    assert [task.id for task in tasks_of(run, 2)] == ["rows:1", "rows:2"]


def test_a_subclass_of_slimes_own_finds_where_it_stands() -> None:
    """What such classes read: the place in the epoch, samples of the epoch, and the buffer."""
    body = """
class Watched(RolloutDataSourceWithBuffer):
    def get_samples(self, n):
        groups = super().get_samples(n)
        self.update_metadata({"last": groups[-1][0].prompt})
        epoch = [sample.prompt for sample in self.dataset.samples]
        place = [self.epoch_id, self.sample_offset, self.sample_group_index, self.sample_index]
        for sample in groups[-1]:
            sample.metadata = {"place": place, "epoch": epoch, "first": self.dataset[0].prompt,
                               "own": self.get_metadata(), "kept": self.get_buffer_length()}
        return groups
"""
    flags = "--prompt-data rows.jsonl --input-key q --label-key a --rollout-shuffle"
    tasks = tasks_of(parsed(body, flags), 8)
    first, second = (tasks[n].row["metadata"] for n in (3, 7))
    order = [task.row["q"] for task in tasks]
    assert (first["place"], second["place"]) == ([0, 4, 4, 8], [1, 2, 8, 16])
    assert first["epoch"][:4] == order[:4]
    assert second["epoch"][:2] == order[6:]
    assert sorted(first["epoch"]) == sorted(second["epoch"]) != first["epoch"]
    assert (second["first"], second["own"], second["kept"]) == (order[6], {"last": order[7]}, 0)


def test_the_dry_run_resets_the_env_on_the_first_task() -> None:
    assert preflight(parsed(COUNTING).config) == []
    body = "class Source:\n def __init__(self, args): pass\n def get_samples(self, n): 1 / 0\n"
    with pytest.raises(AgentRLError, match=r"get_samples\(4\) raised ZeroDivisionError"):
        preflight(parsed(body, name="raises.py").config)


@pytest.mark.parametrize(
    "body", ["def source(args): pass", "class Bad: pass", "class Bad(DataSource): pass"]
)
def test_what_is_no_source_is_refused(body: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.py defines no data source; write `class"):
        tasks_of(parsed(body))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("1 / 0", r"get_samples\(4\) raised ZeroDivisionError.*mine.py:6.* after 0 groups"),
        ("None", "returned None after 0 groups; return a list of groups"),
        ("[]", r"get_samples\(4\) returned an empty list at once, so there is no task"),
        ("[7]", "group 0 is 7; a group is a list of samples"),
        ("[[Sample(multimodal_inputs={'image': 1})]]", "has multimodal_inputs"),
        (
            "[[Sample(custom_rm_path='a.b')]]",
            "has custom_rm_path; the function of --custom-rm",
        ),
        ("[[Sample(generate_function_path='a.b')]]", "generate_function_path; .* sample.metadata"),
    ],
)
def test_what_a_source_does_wrong_is_told_with_its_place(given: str, said: str) -> None:
    body = "class Source:\n    def __init__(self, args): pass\n    def get_samples(self, n):\n"
    with pytest.raises(DataError, match=said):
        tasks_of(parsed(f"{body}        return {given}"))


def test_a_source_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    body = "class Source:\n    def __init__(self): pass\n    def get_samples(self, n): return []\n"
    with pytest.raises(ConfigError, match=r"mine\.py cannot be made: TypeError"):
        tasks_of(parsed(body))


def test_a_part_of_a_mixture_may_have_one() -> None:
    Path("mix.yaml").write_text(
        "parts:\n- {name: a, data_source_path: mine.py, rm_type: math}\n"
        "- {name: b, prompt_data: rows.jsonl, input_key: q, label_key: a, rm_type: math}\n"
    )
    Path("mine.py").write_text(HEAD + COUNTING)
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 --num-rollout 5"
    run = parse(f"{words} --env-mix mix.yaml".split(), "train_async")
    found: Any = [task.id for task in tasks_of(run, 4)]
    assert found == ["sample:0", "rows:1", "sample:1", "rows:2"]


def waiting_for(gate: Path) -> str:
    """A source that gives nothing before there is a file `gate`."""
    waits = f"""\
        import pathlib, time
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.01)
        number ="""
    return COUNTING.replace("        number =", waits)


def test_a_source_that_does_not_come_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, said = tmp_path / "gate", list[str]()

    def hear(record: logging.LogRecord) -> None:
        said.append(record.getMessage())
        gate.touch()

    told = logging.Handler()
    told.emit = hear  # type: ignore[method-assign]
    log = logging.getLogger("agentrl.envs.slime_place")
    log.addHandler(told)
    monkeypatch.setattr("agentrl.envs.slime_place.SLOW_S", 0.01)
    try:
        assert len(tasks_of(parsed(waiting_for(gate)), 2)) == 2
    finally:
        log.removeHandler(told)
    assert "get_samples(4) has taken more than 0.01 s after 0 groups" in said[0]


def test_a_source_that_hangs_ends_the_run_at_its_deadline(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = parsed(waiting_for(gate), "--hook-timeout-s 0.3")
    with pytest.raises(DataError) as caught:
        tasks_of(run, 2)
    gate.touch()
    said = "--data-source-path mine.py: get_samples(4) has not come back within 0.3 s"
    assert str(caught.value).startswith(f"{said} (--hook-timeout-s) after 0 groups")
    assert re.search(r"\(mine\.py:1[01]\)", str(caught.value))  # it looks, or sleeps


def test_a_class_whose_making_hangs_ends_the_run_at_its_deadline(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = f"""
import pathlib, time
class Source:
    def __init__(self, args):
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.01)
    def get_samples(self, num_samples): return []
"""
    with pytest.raises(
        DataError, match=r"mine\.py: Source\(args\) has not come back within 0\.3 s"
    ):
        tasks_of(parsed(body, "--hook-timeout-s 0.3"))
    gate.touch()


def test_a_source_that_hangs_does_not_hold_up_the_end_of_the_program(tmp_path: Path) -> None:
    Path("mine.py").write_text(HEAD + waiting_for(tmp_path / "never"))
    code = f"""
import anyio, sys
from agentrl.config.run import RunConfig
from agentrl.envs.slime_source import SlimeSource
config = RunConfig(data_source_path="mine.py", hf_checkpoint={MODEL!r}, hook_timeout_s=0.3)
async def first():
    await anext(SlimeSource(config).tasks())
anyio.run(first)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "DataError: --data-source-path mine.py: get_samples(" in ended.stderr


def test_nobody_waits_for_one_that_is_given_up(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source = open_source(parsed(waiting_for(gate)).config, load_env("single-turn"))

    async def give_up() -> bool:
        with anyio.move_on_after(0.1) as scope:
            await anext(source.tasks())
        await anyio.Path(gate).touch()
        return scope.cancelled_caught

    assert anyio.run(give_up)
