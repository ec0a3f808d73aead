"""When evaluations on engines of their own are played, and of which weights."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.cluster.evaluations_apart import EvaluationsApart
from agentrl.cluster.events import RunState
from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights, folder_of, written
from agentrl.types import VersionRow
from agentrl.wire.messages import Event

pytestmark = pytest.mark.anyio


class Site:
    """Engines that load and an evaluator that plays, on paper: an evaluation ends when `played`
    is set."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, RunState()
        self.loaded: list[int] = []
        self.scored: list[int] = []
        self.notes: list[str] = []
        self.is_kept = False
        self.broken: set[int] = set()
        self.goes_on = anyio.Event()
        site: Any = self
        self.apart = EvaluationsApart(root, site, site, site, self.state, site)

    def write(self, version: int, iteration: int, *, is_told: bool = True) -> None:
        folder_of(self.root, VersionRow(version, None, iteration)).mkdir(parents=True)
        self.state.iteration = iteration
        if is_told:
            self.state.apply(Event("eval_weights", {"version": version, "iteration": iteration}))

    def end(self) -> None:
        """The learner has ended."""
        self.state.learner_done = True
        self.state.notify()

    async def catch_up(self) -> None:
        """Nothing is on its way."""

    async def load(self, weights: EvalWeights) -> None:
        if weights.version in self.broken:
            raise EngineError("eval-engine-0 does not answer")
        assert weights.folder.is_dir()
        self.loaded.append(weights.version)

    async def keep(self, weights: EvalWeights) -> None:
        self.is_kept = True
        try:
            await anyio.sleep_forever()
        finally:
            self.is_kept = False

    async def evaluate_apart(self, step: int) -> None:
        await self.goes_on.wait()
        self.goes_on = anyio.Event()
        assert self.is_kept, "an engine that is started again gets the weights once more"
        self.scored.append(step)

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def until(self, count: int) -> None:
        with anyio.fail_after(30):
            while len(self.loaded) < count:  # noqa: ASYNC110 - nobody signals it on paper
                await anyio.sleep(0.005)


async def test_each_score_is_of_the_iteration_of_its_weights_which_are_then_removed(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.apart.run)
        for count, (version, iteration) in enumerate([(0, 0), (4, 8), (9, 11)], 1):
            site.write(version, iteration)
            await site.until(count)
            site.state.iteration = iteration + 1  # training goes on
            site.goes_on.set()
        site.state.iteration = 11
        site.end()
    assert (site.loaded, site.scored) == ([0, 4, 9], [0, 8, 11])
    assert written(tmp_path) == []
    assert site.notes == []


async def test_of_weights_that_came_meanwhile_the_newest_are_next_and_the_others_are_told_of(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    async with anyio.create_task_group() as tasks:
        site.write(0, 0)
        tasks.start_soon(site.apart.run)
        await site.until(1)
        for version, iteration in ((2, 2), (4, 4), (6, 6)):
            site.write(version, iteration)
        site.goes_on.set()
        await site.until(2)
        site.end()
        site.goes_on.set()
    assert site.scored == [0, 6]
    (note,) = site.notes
    assert note.startswith("no evaluation after iteration 2, 4: ")
    assert written(tmp_path) == []


async def test_weights_of_iterations_that_are_trained_once_more_are_not_scored_again(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    async with anyio.create_task_group() as tasks:
        site.write(4, 8)
        tasks.start_soon(site.apart.run)
        await site.until(1)
        site.goes_on.set()
        site.write(5, 6)
        site.write(7, 8)
        site.write(8, 9)
        await site.until(2)
        site.end()
        site.goes_on.set()
    assert (site.loaded, site.scored, site.notes) == ([4, 8], [8, 9], [])


async def test_engines_that_do_not_load_cost_one_evaluation(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.broken = {1}
    async with anyio.create_task_group() as tasks:
        site.write(1, 2)
        tasks.start_soon(site.apart.run)
        with anyio.fail_after(30):
            while not site.notes:  # noqa: ASYNC110 - nobody signals it on paper
                await anyio.sleep(0.005)
        site.write(2, 4)
        await site.until(1)
        site.end()
        site.goes_on.set()
    assert site.scored == [4]
    assert "no evaluation after iteration 2: eval-engine-0 does not answer" in site.notes[0]


async def test_a_run_whose_last_weights_never_come_ends_with_a_word(tmp_path: Path) -> None:
    site = Site(tmp_path / "evaluated")
    site.state.iteration = 3
    site.end()
    with anyio.fail_after(30):
        await site.apart.run()
    (note,) = site.notes
    assert "no weights of the last iteration" in note


async def test_what_nobody_was_told_of_is_found_in_the_folder(tmp_path: Path) -> None:
    """The driver or the buffer died after the learner had written it."""
    site = Site(tmp_path)
    site.write(3, 6, is_told=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.apart.run)
        await site.until(1)
        site.goes_on.set()
        site.write(4, 8, is_told=False)
        site.end()
        await site.until(2)
        site.goes_on.set()
    assert (site.scored, site.notes, written(tmp_path)) == ([6, 8], [], [])
