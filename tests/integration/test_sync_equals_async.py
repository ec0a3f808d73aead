"""Invariant I7: without a buffer ahead, asynchronous training is synchronous training, bit for bit.

The loop is whole (see `whole_loop`); the turns of the two runs come back in different orders.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.buffer import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.config.command_line import Program
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import PeerLostError
from agentrl.types import Fate, LeaseHeader
from tests.integration import whole_loop
from tests.integration.playing_engine import PlayingEngine, make_model
from tests.integration.whole_loop import learn, standing

pytestmark = pytest.mark.timeout(1800)

ITERATIONS, GROUPS, EPISODES = 10, 2, 2
I7 = ["--async-buffer-size", "0", "--max-staleness", "0", "--update-weights-interval", "1"]


class Ground:
    """The model, the tasks and the flags that all runs share."""

    def __init__(self, folder: Path, tokenizer_json: str, portal: BlockingPortal) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.portal = portal
        make_model(self.model, tokenizer_json)
        rows = [msgspec.json.encode({"input": f"Task {i}"}).decode() for i in range(7)]
        (folder / "tasks.jsonl").write_text("\n".join(rows))

    def config(self, program: Program, run_id: str, *flags: str) -> RunConfig:
        """As the program resolves it."""
        argv = [
            "--hf-checkpoint", str(self.model), "--run-dir", str(self.folder), "--run-id", run_id,
            "--env", f"{whole_loop.__name__}:Talk",
            "--num-rollout", str(ITERATIONS),
            "--rollout-batch-size", str(GROUPS), "--n-samples-per-prompt", str(EPISODES),
            "--num-steps-per-rollout", "2", "--lr", "0.01", "--num-agent-workers", "2",
            "--actor-num-gpus-per-node", "1", "--rollout-max-response-len", "6",
            "--update-weight-buffer-size", "8192",
            "--rollout-stop-token-ids", *map(str, range(0, 700, 3)),
        ]  # fmt: skip
        if "--env-mix" not in flags:
            argv += ["--prompt-data", str(self.folder / "tasks.jsonl")]
        return parse([*argv, *flags], program).config

    def resumed(self, program: Program, run: Path) -> RunConfig:
        """As the program resolves it that continues `run`."""
        return parse(["--resume", str(run)], program).config


class Played:
    """A finished run: its leases as the learner got them, and what it left."""

    def __init__(self, run: Path, leases: list[LeaseHeader], engine: PlayingEngine) -> None:
        self.run = run
        self.leases = leases
        self.pushed = engine.pushed
        self.weights = (run / "hf" / "model.safetensors").read_bytes()

    @property
    def digests(self) -> list[set[str]]:
        """Digests of the weights after each number of iterations; one each, if all is well."""
        with LedgerReader(self.run / "ledger.db") as ledger:
            iterations = {row.version: row.iteration for row in ledger.load().versions}
        found: list[set[str]] = [set() for _ in range(ITERATIONS + 1)]
        for version, digest in self.pushed:
            found[iterations[version]].add(digest)
        return found

    @property
    def story(self) -> dict[str, Any]:
        """The ledger without places and times: which worker, which segment, which epoch."""
        with LedgerReader(self.run / "ledger.db") as ledger:
            rows = ledger.load_all()
        episodes = [msgspec.structs.replace(row, worker=None, wall_s=0.0) for row in rows.episodes]
        return {
            "groups": rows.groups,
            "episodes": [msgspec.structs.replace(row, trajectories=()) for row in episodes],
            "columns": [[(t.meta, t.payload.xxh3) for t in row.trajectories] for row in episodes],
            "leases": [msgspec.structs.replace(row, stats={}, stepped_by=0) for row in rows.leases],
            # the recipe counts flags that this test shows to make no difference
            "versions": [(row.version, row.parent, row.iteration) for row in rows.versions],
            "marks": {mark for mark in rows.marks if mark.key != "requested_by"},
            "fates": rows.fates,
            "counts": (rows.minted, rows.cursor, rows.last_lease),
        }

    @property
    def without_parts(self) -> dict[str, Any]:
        """The story, as if no task had a part."""
        story = self.story
        for rows, field in (("groups", "task"), ("episodes", "facts")):
            without = [msgspec.structs.replace(getattr(r, field), part="") for r in story[rows]]
            pairs = zip(story[rows], without, strict=True)
            changed = [msgspec.structs.replace(row, **{field: value}) for row, value in pairs]
            story[rows] = type(story[rows])(changed)
        return story


def rows_of(leases: list[LeaseHeader]) -> list[Any]:
    """Every row of every lease in order, without its place in the store."""
    return [
        (
            lease.number,
            lease.last,
            [
                (group.mint, group.task, group.rewards, row.episode, row.meta, row.payload.xxh3)
                for group in lease.groups
                for row in group.trajectories
            ],
        )
        for lease in leases
    ]


def play(ground: Ground, config: RunConfig, **engine: int) -> Played:
    """A run from its first process to its last."""
    served = PlayingEngine(ground.model, **engine)
    with standing(config, served, ground.portal) as site:
        _, leases = learn(config, site, served)
        ground.portal.call(site.drain, "the run is complete", False)
    return Played(site.run, leases, served)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: Any, qwen_tokenizer_json: str) -> Iterator[Ground]:
    with start_blocking_portal("asyncio") as portal:
        yield Ground(tmp_path_factory.mktemp("i7"), qwen_tokenizer_json, portal)


@pytest.fixture(scope="module")
def synchronous(ground: Ground) -> Played:
    return play(ground, ground.config("train", "sync"), seed=1)


def test_train_async_with_nothing_ahead_equals_train(ground: Ground, synchronous: Played) -> None:
    other = play(ground, ground.config("train_async", "async", *I7), seed=2)
    assert other.story == synchronous.story
    assert rows_of(other.leases) == rows_of(synchronous.leases)
    assert other.pushed == synchronous.pushed
    assert other.weights == synchronous.weights


def test_what_was_compared_is_a_run_that_learns(synchronous: Played) -> None:
    report = audit(synchronous.run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
    versions = [version for version, _ in synchronous.pushed]
    digests = [digest for _, digest in synchronous.pushed]
    assert versions == list(range(ITERATIONS + 1))
    assert len(set(digests)) == ITERATIONS + 1, "an iteration changed no weight"
    story = synchronous.story
    assert [row.mints for row in story["leases"]] == [
        (2 * i + 1, 2 * i + 2) for i in range(ITERATIONS)
    ]
    metas = [meta for (meta, _), *_ in story["columns"]]
    assert [{version for version, _ in meta.versions} for meta in metas] == [
        {index // (GROUPS * EPISODES)} for index in range(len(metas))
    ]
    assert max(meta.num_turns for meta in metas) == 2


def test_a_buffer_ahead_trains_other_tokens_to_other_weights(
    ground: Ground, synchronous: Played
) -> None:
    """Else the test of equality could not fail."""
    ahead = ["--async-buffer-size", "2"]
    config = ground.config("train_async", "ahead", *ahead)
    other = play(ground, config, turns_first=3 * GROUPS * EPISODES)
    second = [row for _, _, rows in rows_of(other.leases)[1:2] for row in rows]
    assert {version for *_, meta, _ in second for version, _ in meta.versions} == {0}
    assert other.digests[:1] == synchronous.digests[:1]
    assert other.weights != synchronous.weights


@pytest.mark.parametrize(("program", "flags", "weight"), [("train", [], 1), ("train_async", I7, 3)])
def test_a_mixture_of_one_env_twice_equals_a_run_without_a_mixture(
    ground: Ground, synchronous: Played, program: Program, flags: list[str], weight: int
) -> None:
    """The weights of each push and of the end, and all that the ledger holds but for the parts."""
    rows = str(ground.folder / "tasks.jsonl")
    parts = [{"name": n, "prompt_data": rows, "weight": w} for n, w in (("a", weight), ("b", 1))]
    mix = ground.folder / "mix.yaml"
    mix.write_bytes(msgspec.yaml.encode({"parts": parts}))
    run_id = f"mixed-{program}"
    config = ground.config(program, run_id, "--env-mix", str(mix), *flags)
    other = play(ground, config, seed=3)
    assert other.pushed == synchronous.pushed
    assert other.weights == synchronous.weights
    assert rows_of(other.leases) == rows_of(synchronous.leases)
    of_parts = Counter(row.task.part for row in other.story["groups"])
    assert of_parts == {
        "a": ITERATIONS * GROUPS * weight // (weight + 1),
        "b": ITERATIONS * GROUPS // (weight + 1),
    }
    assert other.without_parts == synchronous.story


def test_a_run_that_is_stopped_anywhere_ends_with_the_same_weights(
    ground: Ground, synchronous: Played
) -> None:
    """In each of the ten iterations the learner dies before it has told of it, goes on from the
    last checkpoint, and is then stopped with all the rest; another program continues the run.

    No push is undone by that: tokens of weights that a recovery undid are old, and S = 0 has none.
    """
    config = ground.config("train_async", "stopped", *I7)
    run = Path(config.run_dir) / "stopped"
    run.mkdir()
    write_config(run / "config.toml", msgspec.structs.replace(config, run_id=None))
    engines = []
    for iteration in range(1, ITERATIONS + 1):
        engines.append(PlayingEngine(ground.model, seed=iteration))
        with standing(config, engines[-1], ground.portal) as site:
            with pytest.raises(PeerLostError, match="killed"):
                learn(config, site, engines[-1], dies_at=iteration)

            def stop(stepped: int, site: Any = site, last: int = iteration) -> bool:
                if stepped < last:
                    return False
                ground.portal.call(site.drain, "interrupted", True)
                return True

            outcome, leases = learn(config, site, engines[-1], should_stop=stop)
            assert outcome.num_iterations == iteration
            assert [lease.number for lease in leases] == [iteration]
            if iteration == ITERATIONS:
                ground.portal.call(site.drain, "the run is complete", False)
        config = ground.resumed("train_async", run)
    engines[-1].pushed = [push for engine in engines for push in engine.pushed]
    stopped = Played(run, [], engines[-1])
    assert stopped.digests == synchronous.digests
    assert stopped.weights == synchronous.weights
    report = audit(run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
