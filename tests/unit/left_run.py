"""A run as it lies on disk when it has ended: one group of one episode, two iterations, and two
evaluations; the model is the shipped one."""

import io
from pathlib import Path
from typing import Any

import agentrl.envs.search_r1
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow, Mark, StoredTrajectory
from agentrl.buffer.store import PayloadStore
from agentrl.config.resolve import parse
from agentrl.config.toml import write_config
from agentrl.telemetry.recorder import Recorder
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.stream import TokenStream
from agentrl.types import Fate, GroupState, Outcome, StopReason, Task, VersionRow
from tests.manual_clock import ManualClock
from tests.unit.checkpoint_ranks import saved

__all__ = ["MODEL", "leave_run"]

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"


def conversation(version: int) -> TokenStream:
    """The episode that the quickstart shows, as an engine of `version` would have sampled it."""
    chat = load_format("qwen", MODEL)
    stream = TokenStream(chat.vocab, openers=[chat.assistant_opener])
    arguments = b'{"query": "continent of Azerbaijan"}'
    turns = [chat.write("", [ToolCall("0", "search", arguments)])]
    turns += [chat.write("<answer> Asia </answer>")]
    found = "The currency of Azerbaijan is Manat.\nThe continent of Azerbaijan is Asia."
    stream.extend(chat.open_prompt([Message.user("What is the continent of Azerbaijan?")]))
    for turn in turns:
        stream.prompt_ids()
        stream.sampled(turn, [-0.1] * len(turn), [version] * len(turn))
        if turn is not turns[-1]:
            stream.extend(chat.observe([Message.tool(found)], turn))
    return stream


def write_ledger(run: Path) -> None:
    """One group of one episode, trained and saved."""
    saved(run / "recovery", 1, run_id=run.name)
    stream = conversation(version=0)
    with (
        Ledger(run / "ledger.db") as ledger,
        PayloadStore(run / "payload", segment_bytes=10**6, first=1) as store,
    ):
        stored = StoredTrajectory(stream.meta(1.0), store.append(stream.columns()))
        store.sync()
        task = Task("search-r1-local/train/42/464", {"answer": "Asia"})
        ends: dict[str, Any] = {"outcome": Outcome.DONE, "stop_reason": StopReason.TERMINATED}
        ledger.commit(
            [
                VersionRow(0, None, 0),
                GroupRow(1, task, 1, 1, GroupState.RETIRED, Fate.TRAINED, 1, (1.0,)),
                EpisodeRow(1, 0, reward=1.0, trajectories=(stored,), **ends),
                LeaseRow(1, (1,), stepped_by=1),
                Mark("retired_through", 1),
            ]
        )


def record(run: Path) -> str:
    """Two iterations and two evaluations; returns what the person who watches is told."""
    stream, clock = io.StringIO(), ManualClock()
    config = parse(["--async-buffer-size", "4"], "train_async").config
    write_config(run / "config.toml", config)
    with Recorder(run, config, clock, stream=stream) as recorder:
        scored = {"name": "heldout", "n": 640, "failed": 0, "version_min": 0, "version_max": 0}
        recorder.evaluation(0, scored | {"score": 0.25}, is_greedy=True)
        for number in (1, 2):
            clock.advance(2.0)
            metrics = {"rollout/reward_mean": number / 4, "train/age_max_trained": number}
            figures = {"ready": 9, "charged": 80, "sampled_tokens": 5000 * number}
            recorder.event("published", {"metrics": {"perf/push_s": 0.04}})
            recorder.event("step", {"number": number, "metrics": metrics, "buffer": figures})
        recorder.evaluation(2, scored | {"score": 0.5}, is_greedy=True)
        recorder.finish("interrupted")
        recorder.note(f"{recorder.epitaph('complete')}; see {run}")
    return stream.getvalue()


def leave_run(run: Path) -> str:
    """`run` as Ctrl-C leaves it; returns what it said."""
    run.mkdir()
    write_ledger(run)
    (run / "hf").symlink_to(MODEL)
    return record(run)
