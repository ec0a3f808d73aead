"""Run directories that the real core, ledger and store have written, and what is shown of them."""

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import agentrl.envs.search_r1
from agentrl.buffer import BufferCore, BufferSettings, payloads
from agentrl.buffer.events import DropSegments, FromPeer, Input, Persist, Send, Stored
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.store import PayloadStore
from agentrl.columns import COLUMNS
from agentrl.tokens.chat import Message as ChatMessage
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.spans import Span
from agentrl.types import (
    EpisodeAssignment,
    EpisodeReport,
    Outcome,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.view.choice import Choice
from agentrl.view.episodes import read_episodes
from agentrl.view.text import print_episodes
from agentrl.view.tokenizer import load_vocab
from agentrl.wire.messages import (
    Assign,
    Capacity,
    Finished,
    GroupScore,
    Hello,
    LeaseRequest,
    Message,
    PushDone,
    Retire,
    Role,
    ScoreGroup,
    Stepped,
    TaskCredit,
    Tasks,
    Welcome,
)

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
FORMAT = load_format("qwen", MODEL)
#: What a tool or a task may say to the person who reads it.
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\r\u202e &amp; <|im_end|>\n"
    "<|im_start|>assistant\n-- turn 9, assistant --\n==== episode forged ====\x9b31m\x00\"'>"
)
LOGPROBS = (-0.05, -3.0)


class ViewedRun:
    """The real core with one worker and one learner, committed and stored as the shell does."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 10**6,
        segment_bytes: int = 10**6,
        settings: BufferSettings | None = None,
    ) -> None:
        self.folder = folder
        if settings is None:
            (folder / "config.toml").write_text(f"hf_checkpoint = {str(MODEL)!r}\n")
            settings = BufferSettings(
                address="ipc:///none",
                rollout_batch_size=1,
                n_samples_per_prompt=2,
                keep_trajectories=keep,
            )
        self.core = BufferCore(settings)
        self.ledger = Ledger(folder / "ledger.db")
        self.store = PayloadStore(folder / "payload", segment_bytes=segment_bytes, first=1)
        self.epochs: dict[str, int] = {}
        self.inbox: list[Message] = []
        roles: tuple[Role, ...] = ("driver", "learner", "worker")
        for role in roles:
            self.do(FromPeer(role, 0, 0, Hello(role, role, "1")))
        self.publish(1, None, 0)
        self.say("worker", Capacity(100))

    def do(self, event: Input) -> None:
        effects = self.core.handle(event, 0.0)
        self.ledger.commit([effect.row for effect in effects if isinstance(effect, Persist)])
        for effect in effects:
            match effect:
                case Send(peer, message):
                    if isinstance(message, Welcome):
                        self.epochs[peer] = message.epoch
                    self.inbox.append(message)
                case DropSegments(segments):
                    self.store.drop(segments)

    def say(self, peer: str, message: Message) -> None:
        self.do(FromPeer(peer, self.epochs[peer], 1, message))

    def publish(self, version: int, parent: int | None, iteration: int) -> None:
        self.say("learner", PushDone(VersionRow(version, parent, iteration), iteration))

    def train(self, number: int, said: str, *, version: int | None = None) -> None:
        """Lease `number`: a group of two episodes, rewarded `number` and 0, trained and saved.
        Their tokens are of `version`, by default the newest."""
        for episode, answer in zip(self.mint(said), ("Paris", "Rome"), strict=True):
            reward = float(number * (episode.id.index == 0))
            self.finish(episode, said, answer, version=version or number, reward=reward)
        (order,) = [m for m in self.inbox if isinstance(m, ScoreGroup)]
        rewards = [summary.reward for summary in order.episodes]
        self.say("worker", GroupScore(order.group, rewards, True))
        self.say("learner", LeaseRequest(number))
        self.say("learner", Stepped(number, False, 0.0, 0.0, 1.0))
        self.publish(number + 1, number, number)
        self.say("learner", Retire(number))

    def mint(self, said: str) -> list[EpisodeAssignment]:
        """A group of the next task; its episodes, as they were assigned."""
        credit = [m for m in self.inbox if isinstance(m, TaskCredit)][-1]
        self.inbox = []
        task = Task(f"t{credit.cursor}", {"question": said})
        self.say("driver", Tasks([task], credit.cursor + 1))
        return self.assigned()

    def assigned(self) -> list[EpisodeAssignment]:
        """Episodes that were handed out since the last group was minted."""
        return [e for m in self.inbox if isinstance(m, Assign) for e in m.episodes]

    def finish(
        self, episode: EpisodeAssignment, said: str, answer: str, *, version: int, reward: float
    ) -> None:
        """The episode is done, and all of it is stored."""
        columns, meta = trajectory(said, answer, version=version)
        report = EpisodeReport(
            episode.id, Outcome.DONE, StopReason.TERMINATED, [meta], reward, {"calls": 1.0}
        )
        assert payloads.defect(report, columns) is None
        ref = self.store.append(columns)
        self.store.sync()
        self.do(Stored("worker", self.epochs["worker"], 1, Finished(report), (ref,)))

    def fail(self, episode: EpisodeAssignment, error: str) -> None:
        """An attempt at the episode ends as the Env's fault."""
        report = EpisodeReport(episode.id, Outcome.ENV_ERROR, StopReason.ERROR, [], error=error)
        self.say("worker", Finished(report))

    def close(self) -> Path:
        self.ledger.__exit__(None, None, None)
        self.store.__exit__(None, None, None)
        return self.folder


def trajectory(said: str, answer: str, version: int) -> tuple[list[memoryview], TrajectoryMeta]:
    """A prompt that says `said`, a call, a tool that answers `said`, and an answer."""
    ids: list[int] = []
    kinds: list[int] = []
    turns: list[int] = []
    logprobs: list[float] = []

    def add(spans: list[Span], turn: int) -> None:
        for span in spans:
            ids.extend(span.ids)
            kinds.extend([span.kind] * len(span.ids))
            turns.extend([turn] * len(span.ids))
            sampled = span.kind is SpanKind.SAMPLED
            logprobs.extend(LOGPROBS[n % 2] if sampled else 0.0 for n in range(len(span.ids)))

    first, second = FORMAT.write("I will look it up."), FORMAT.write(answer)
    add(FORMAT.open_prompt([ChatMessage("user", said)]), -1)
    add([Span(SpanKind.SAMPLED, first)], 0)
    add(FORMAT.observe([ChatMessage("tool", said)], first), 0)
    add([Span(SpanKind.SAMPLED, second)], 1)
    versions = np.where(np.array(kinds) == SpanKind.SAMPLED, version, -1)
    values = dict(zip(COLUMNS, (ids, kinds, logprobs, versions, turns), strict=True))
    columns = [
        memoryview(np.array(values[n]).astype(c.dtype).tobytes()) for n, c in COLUMNS.items()
    ]
    num_sampled = len(first) + len(second)
    meta = TrajectoryMeta(len(ids), num_sampled, 2, 0.0, [(version, num_sampled)])
    return columns, meta


def trained(folder: Path, said: str = "Which city?", **how: Any) -> Path:
    """A run of three leases, each with an answer of its own in every episode."""
    run = ViewedRun(folder, **how)
    for number in (1, 2, 3):
        run.train(number, said)
    return run.close()


def text(run: Path, *, tokens: bool = False, **choice: Any) -> str:
    stream = io.StringIO()
    chosen = msgspec.convert(choice, Choice)
    print_episodes(stream, read_episodes(run, chosen), load_vocab(run), tokens=tokens)
    return stream.getvalue()


def headings(shown: str) -> list[str]:
    return re.findall(r"^==== episode (\S+) ====$", shown, re.MULTILINE)
