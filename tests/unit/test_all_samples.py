"""`--rollout-all-samples-process-path`: what the buffer tells of scored groups is shown to the
function, for each lease, in a process of its own."""

import json
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
import pytest

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.buffer import BufferSettings
from agentrl.cluster.all_samples import AllSamples
from agentrl.cluster.scored_groups import ScoredGroups
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.slime_logs.process import MAX_LATE
from agentrl.errors import ConfigError
from agentrl.telemetry.recorder import Recorder
from agentrl.types import SamplingParams, Task
from agentrl.wire.messages import Event
from tests.unit.buffer_bench import Bench, bench
from tests.unit.rollout_ground import MODEL

pytestmark = pytest.mark.anyio

FLAG = "--rollout-all-samples-process-path"
#: One line for each call; goes wrong as the row of a task says.
SAVING = """\
import json, os
from slime.observability.logging_utils import log

calls = 0

def save(args, all_samples, data_source):
    global calls
    calls += 1
    lines = [[s.index, s.kept, s.reward, s.response, s.label] for g in all_samples for s in g]
    with open(os.environ["SEEN"], "a") as file:
        file.write(json.dumps(lines) + "\\n")
    log(args, {"mine/calls": calls, "mine/dropped": sum(not g[0].kept for g in all_samples)})
    word = all_samples[0][0].prompt
    if word == "raise":
        raise KeyError("boom")
    if word == "end":
        os._exit(3)
    if word == "hang":
        open(args.hf_checkpoint).read()
    if word == "tell":
        raise ValueError(repr(all_samples[0][0].metadata))
"""


class Told:
    """A recorder that notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.figures: list[tuple[int, dict[str, float], str]] = []
        self.changed = anyio.Event()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def logged(
        self, step: int, figures: dict[str, float], told: str, *, is_over: bool = False
    ) -> None:
        assert is_over == ("is not called again" in told)
        self.figures.append((step, figures, told))
        self.changed.set()
        self.changed = anyio.Event()

    async def calls(self, number: int) -> None:
        while len(self.figures) < number:
            await self.changed.wait()


class Site:
    """A buffer, a function, and what stands between them in the driver."""

    def __init__(self, folder: Path, groups: ScoredGroups | None = None, **flags: Any) -> None:
        (folder / "mine.py").write_text(SAVING)
        self.place = f"{folder / 'mine.py'}:save"
        usual: dict[str, Any] = {
            "rollout_all_samples_process_path": self.place,
            "n_samples_per_prompt": 2,
        }
        self.config = RunConfig(**(usual | flags))
        settings = BufferSettings.from_config(self.config, "", SamplingParams())
        room: dict[str, Any] = {"async_buffer_size": 4, "max_staleness": 4}
        self.buffer: Bench = bench(tells_judged=settings.tells_judged, **room)
        self.told = Told()
        self.log = folder / "log"
        self.all = AllSamples(self.config, self.log, cast(Recorder, self.told), groups)
        self._heard = 0

    def judge(self, *keeps: bool, word: str = "2+2", **row: Any) -> None:
        """Have a group played and judged for each of these."""
        for keep in keeps:
            self.buffer.offer(1, row={"input": word, "label": "4", **row})
            for episode in self.buffer.assigned("w0.1"):
                self.buffer.finish("w0.1", episode.id, answer="four")
            self.buffer.judge_all("w0.1", keep=keep)

    def hear(self) -> None:
        """As the driver does, what has come over the wire."""
        for kind, data in self.buffer.events[self._heard :]:
            event = msgspec.msgpack.decode(msgspec.msgpack.encode(Event(kind, data)), type=Event)
            if kind == "scored":
                self.all.scored(event.data)
            elif kind == "lease":
                self.all.leased(event.data["number"])
        self._heard = len(self.buffer.events)


@asynccontextmanager
async def calling(site: Site) -> AsyncIterator[Site]:
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(site.all.run)
            yield site
            group.cancel_scope.cancel()
    finally:
        site.all.close()


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.jsonl"))
    return tmp_path / "seen.jsonl"


def lines(seen: Path) -> list[Any]:
    return [json.loads(line) for line in seen.read_text().splitlines()]


def group(place: int, *, kept: bool) -> list[Any]:
    """What the function notes of a group, by its place in the run."""
    return [[2 * place + n, kept, float(n), "four", "4"] for n in range(2)]


async def test_a_function_sees_kept_and_dropped_groups_of_each_lease(
    tmp_path: Path, seen: Path
) -> None:
    path = f"{tmp_path / 'mine.py'}:save"
    async with calling(Site(tmp_path, rollout_all_samples_process_path=path)) as site:
        site.judge(True, False, True)
        site.buffer.lease(1)
        site.judge(False)
        site.buffer.step(1)
        site.judge(True, True)
        site.buffer.lease(2)
        site.judge(False)
        site.hear()
        await site.all.end()
    first = [*group(0, kept=True), *group(1, kept=False), *group(2, kept=True)]
    second = [*group(3, kept=False), *group(4, kept=True), *group(5, kept=True)]
    assert lines(seen) == [first, second, group(6, kept=False)]
    figures = [{"mine/calls": n, "mine/dropped": 1.0} for n in (1.0, 2.0, 3.0)]
    assert site.told.figures == [(1, figures[0], ""), (2, figures[1], ""), (2, figures[2], "")]
    assert site.told.notes == []


@pytest.mark.parametrize(
    ("word", "told"), [("raise", "KeyError: 'boom'"), ("end", "the function ended its process")]
)
async def test_what_it_raises_or_ends_is_told_and_it_is_called_again(
    tmp_path: Path, seen: Path, word: str, told: str
) -> None:
    async with calling(Site(tmp_path)) as site:
        site.judge(True, True, word=word)
        site.buffer.lease(1)
        site.buffer.step(1)
        site.judge(True, True)
        site.buffer.lease(2)
        site.hear()
        await site.all.end()
    assert len(lines(seen)) == 2
    (one, _, said), (two, figures, nothing) = site.told.figures
    assert (one, two, nothing) == (1, 2, "")
    assert said.startswith(f"{FLAG} {site.place}: ")
    assert told in said
    # a process that ended has forgotten its count
    assert figures["mine/calls"] == (2 if word == "raise" else 1)
    notes = [note.split(" were")[0] for note in site.told.notes]
    assert notes == ([] if word == "raise" else ["note: 2 scored groups"])


async def not_shown(site: Site) -> str:
    """What the end tells of the groups of two leases."""
    async with calling(site):
        for number in (1, 2):
            site.judge(True, True)
            site.buffer.lease(number)
            site.buffer.step(number)
            site.hear()
        await site.all.end()
    (note,) = site.told.notes
    return note


async def test_what_a_function_that_is_not_called_again_misses_is_counted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.all._process._num_late = MAX_LATE
    assert (await not_shown(site)).startswith("note: 4 scored groups were not shown to")
    assert ["is not called again" in told for _, _, told in site.told.figures] == [True, True]


async def test_what_no_process_can_begin_for_is_counted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.all = AllSamples(site.config, tmp_path / "no" / "log", cast(Recorder, site.told))
    assert (await not_shown(site)).startswith("note: 4 scored groups were not shown to")
    assert ["no process can begin" in told for _, _, told in site.told.figures] == [True, True]


async def test_a_function_that_cannot_be_loaded_has_seen_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "mine.py").write_text("import no_such_module")
    assert (await not_shown(site)).startswith("note: 4 scored groups were not shown to")
    assert ["no_such_module" in told for _, _, told in site.told.figures] == [True, True]


async def test_a_group_that_cannot_be_read_is_not_the_functions_fault(tmp_path: Path) -> None:
    async with calling(Site(tmp_path)) as site:
        site.all.scored({"mint": "x"})
        await site.all.end()
    ((_, _, told),) = site.told.figures
    assert told.startswith(f"{FLAG} {site.place}: the function is not called, for what it is given")
    assert "Expected `int`, got `str` - at `$.mint`" in told
    assert [note.split(" were")[0] for note in site.told.notes] == ["note: 1 scored groups"]


async def test_rows_arrive_as_they_were_told(tmp_path: Path, seen: Path) -> None:
    odd = {"score": math.nan, "image": b"\xff", "by_number": {7: "seven"}}
    async with calling(Site(tmp_path)) as site:
        site.judge(True, True, word="tell", metadata=odd)
        site.buffer.lease(1)
        site.hear()
        await site.all.end()
    ((_, _, told),) = site.told.figures
    assert f"ValueError: {odd!r}" in told


async def test_the_loop_goes_on_while_it_works_and_what_waits_is_shown_afterwards(
    tmp_path: Path, seen: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with calling(Site(tmp_path, hf_checkpoint=str(gate))) as site:
        site.judge(True, True, word="hang")
        site.buffer.lease(1)
        site.hear()
        # Opening it waits for the function to read it, in a thread beside this loop.
        file = await anyio.to_thread.run_sync(lambda: gate.open("w"))
        site.buffer.step(1)
        site.judge(True, False, True)
        site.buffer.lease(2)
        site.hear()
        assert site.told.figures == []
        file.close()
        await site.told.calls(2)
    assert [len(each) for each in lines(seen)] == [4, 6]


async def test_at_the_end_groups_that_it_was_too_slow_for_are_counted(
    tmp_path: Path, seen: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with calling(Site(tmp_path, hf_checkpoint=str(gate))) as site:
        site.judge(True, True, word="hang")
        site.buffer.lease(1)
        site.hear()
        file = await anyio.to_thread.run_sync(lambda: gate.open("w"))
        site.judge(False, False, False)
        site.hear()
        await site.all.end(limit_s=0)
        file.close()
    (note,) = site.told.notes
    # those of the call that did not come to its end, and those that waited
    assert note.startswith(f"note: 5 scored groups were not shown to {FLAG} {site.place}: no call")


async def test_groups_for_which_there_is_no_room_are_counted(tmp_path: Path, seen: Path) -> None:
    async with calling(Site(tmp_path, ScoredGroups(max_bytes=1000))) as site:
        site.judge(*[False] * 20)
        site.hear()
        await site.all.end()
    ((shown),) = lines(seen)
    num_shown = len(shown) // 2
    assert 0 < num_shown < 20
    assert shown[-1][0] == 39  # the newest
    (note,) = site.told.notes
    assert note.startswith(f"note: {20 - num_shown} scored groups were not shown")


async def test_a_run_that_names_none_tells_of_no_group(tmp_path: Path) -> None:
    config = RunConfig()
    assert not BufferSettings.from_config(config, "", SamplingParams()).tells_judged
    assert not AllSamples(config, tmp_path / "log", cast(Recorder, Told())).is_there


@pytest.mark.parametrize("place", ["mine.py:save", None])
def test_episodes_report_what_they_said_for_it(tmp_path: Path, place: str | None) -> None:
    config = RunConfig(
        env="guess", hf_checkpoint=str(MODEL), rollout_all_samples_process_path=place
    )
    worker = Worker(WorkerSettings.from_config(config, MODEL, 512, {}))
    strategy = worker._ways.of(Task("t", {})).strategy
    assert strategy.reports_answers is (place is not None)  # type: ignore[attr-defined]


def refused(*flags: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(["--hf-checkpoint", str(MODEL), FLAG, "mine.f", *flags], "train_async")
    return str(error.value)


def test_it_is_refused_where_a_function_of_the_users_has_all_samples(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"input": "2+2", "label": "4"}\n')
    rows = ["--prompt-data", str(tmp_path / "rows.jsonl"), "--rm-type", "math"]
    said = refused(*rows, "--rollout-function-path", "mine.g")
    assert f"{FLAG}: a function of --rollout-function-path has all samples itself" in said
    assert "call it at the end of yours" in said


def test_it_is_refused_where_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    said = refused("--loss-type", "sft_loss", "--prompt-data", str(tmp_path / "rows.jsonl"))
    assert FLAG in said
    assert "--loss-type sft_loss imitates dialogues" in said
