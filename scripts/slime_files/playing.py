"""Episodes of one of slime's examples, played by a worker as in a run: flags of its launch script,
rows of a file, a model's tokenizer. Only the engine is scripted, and no buffer stands behind it.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio.lowlevel

import agentrl.envs.search_r1
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.cluster.roles.worker import teacher_of
from agentrl.columns import dealt
from agentrl.config.resolve import parse
from agentrl.config.sampling import training_turns
from agentrl.envs.registry import load_env
from agentrl.envs.sources import RowSource
from agentrl.envs.tasks import open_source
from agentrl.errors import EngineError
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    SamplingParams,
    SpanKind,
    TurnClient,
)
from agentrl.wire.arrays import as_arrays
from scripts.slime_files.records import Episode, Span, Turn

__all__ = ["MODEL", "Engine", "Stage", "episode_of", "recorded_turns", "said", "with_flags"]

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
#: Tokens of prompt and response: of the engine, where the flags say nothing less.
MAX_CONTEXT = 32768
_CHAT = load_format("qwen", MODEL)

Answer = Callable[[Sequence[int], SamplingParams], Turn]


def prompt_of(ids: Sequence[int]) -> str:
    """What stands for a prompt in a record."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()


class Engine(TurnClient):
    """A `TurnClient` whose turns are those of `answer`. `turns`: those that it gave."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.turns: list[Turn] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        await anyio.lowlevel.checkpoint()
        turn = self._answer(input_ids, sampling)
        self.turns.append(turn)
        versions = [turn.version] * len(turn.ids)
        return Generation(turn.ids, turn.logprobs, versions, turn.finish)


def said(texts: Sequence[str]) -> Answer:
    """One text after the other, as an engine would sample it: up to a stop id, and no longer than
    it may be. Each turn is of the next version, and no two tokens have the same log-probability."""
    left = iter(enumerate(texts))

    def answer(prompt: Sequence[int], sampling: SamplingParams) -> Turn:
        try:
            number, text = next(left)
        except StopIteration:
            raise EngineError(
                f"there are {len(texts)} answers, and one more is asked for"
            ) from None
        whole = _CHAT.vocab.encode_trusted(text)
        stops = [at + 1 for at, id_ in enumerate(whole) if id_ in sampling.stop_token_ids]
        end = min([sampling.max_new_tokens, len(whole), *stops[:1]])
        is_cut = end == sampling.max_new_tokens and end not in stops
        return Turn(
            prompt=prompt_of(prompt),
            max_new_tokens=sampling.max_new_tokens,
            ids=whole[:end],
            logprobs=[-(number * 512 + place + 1) / 4096 for place in range(end)],
            version=number,
            finish="length" if is_cut else "stop",
        )

    return answer


def recorded_turns(turns: Sequence[Turn]) -> Answer:
    """What was recorded, each once, for whoever asks the same."""
    left = list(turns)

    def answer(prompt: Sequence[int], sampling: SamplingParams) -> Turn:
        asked = (prompt_of(prompt), sampling.max_new_tokens)
        for place, turn in enumerate(left):
            if asked == (turn.prompt, turn.max_new_tokens):
                return left.pop(place)
        raise EngineError(
            f"no turn was recorded after these {len(prompt)} tokens with max_new_tokens "
            f"{sampling.max_new_tokens}; {len(left)} others are left"
        )

    return answer


class Stage:
    """A worker for the episodes of `rows`, one after the other. Own it with `async with`."""

    def __init__(
        self, flags: Sequence[str], rows: Sequence[Mapping[str, Any]], folder: Path
    ) -> None:
        place = Path(tempfile.mkdtemp(dir=folder))
        path, model = place / "rows.jsonl", _model(place / "model")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        argv = [*flags, "--prompt-data", str(path), "--hf-checkpoint", str(model)]
        argv += ["--chat-format", "qwen", "--device", "cpu", "--run-dir", str(place / "runs")]
        self.config = parse(argv, "train").config
        settings = WorkerSettings.from_config(self.config, model, MAX_CONTEXT, {})
        self._teacher = teacher_of(self.config)
        self._worker = Worker(settings, self._teacher)
        source = open_source(self.config, load_env(self.config.env or "single-turn"))
        assert isinstance(source, RowSource)
        self._source = source
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._owned.enter_async_context(self._worker.endpoint)
        if self._teacher is not None:
            await self._owned.enter_async_context(self._teacher)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._owned.aclose()

    async def play(self, place: int, engine: Engine) -> PlayedEpisode:
        """The episode of a row."""
        assignment = EpisodeAssignment(
            id=EpisodeId("00000001", place),
            mint=1,
            seed=7,
            task=self._source.at(place),
            sampling=training_turns(self.config),
        )
        return await self._worker.player.play(assignment, engine)


def _model(folder: Path) -> Path:
    """The shipped model, as one that reads longer texts."""
    shutil.copytree(MODEL, folder, copy_function=os.symlink)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").unlink()
    text = json.dumps(config | {"max_position_embeddings": MAX_CONTEXT})
    (folder / "config.json").write_text(text)
    return folder


def episode_of(played: PlayedEpisode) -> Episode:
    """An episode as records have it."""
    report = played.report
    columns = dealt(report.layouts, played.columns)
    is_apart = report.facts.env_reward is not None
    return Episode(
        outcome=report.outcome.value,
        error=report.error,
        stop_reason=report.stop_reason.value,
        reward=report.reward,
        metrics=report.metrics,
        trajectories=[
            list(_spans(as_arrays(meta.layout, meta.num_tokens, own)))
            for meta, own in zip(report.trajectories, columns, strict=True)
        ],
        rewards={meta.role: meta.reward for meta in report.trajectories} if is_apart else {},
    )


def _spans(columns: Mapping[str, Any]) -> Iterator[Span]:
    lists = {name: column.tolist() for name, column in columns.items()}
    size, start = len(lists["tokens"]), 0
    marks = list(zip(lists["kinds"], lists["versions"], strict=True))
    for end in range(1, size + 1):
        if end < size and marks[end] == marks[start]:
            continue
        own = {name: values[start:end] for name, values in lists.items()}
        is_sampled = own["kinds"][0] == SpanKind.SAMPLED
        yield Span(
            kind=SpanKind(own["kinds"][0]).name.lower(),
            ids=own["tokens"],
            logprobs=own["logprobs"] if is_sampled else [],
            version=own["versions"][0],
            teacher=own.get("teacher_logprobs", []) if is_sampled else [],
            excluded=bool(own.get("excluded", [0])[0]),
        )
        start = end


def with_flags(argv: Sequence[str], **values: str | None) -> list[str]:
    """`argv` with other values of flags that it has; None: without one and its value."""
    left = list(argv)
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if flag in left:
            at = left.index(flag)
            left[at : at + 2] = [] if value is None else [flag, value]
    return left
