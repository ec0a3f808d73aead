"""Hooks that workers call, tried by a worker: it plays episodes of the first task, in which a
policy says what it is told, and judges their group."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec

from agentrl.actors.report import PlayedEpisode
from agentrl.actors.scripted import Scripted, words
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.cli.hooks.noted import shown
from agentrl.cli.hooks.trial import HookTrial
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns, training_turns
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.check.dry_reset import first_task
from agentrl.envs.check.preflight import source_of
from agentrl.envs.eval_function import CALLED, call_of
from agentrl.envs.grading.labels import label_text
from agentrl.envs.registry import load_env
from agentrl.envs.rows.keys import find, holds
from agentrl.errors import ConfigError, DataError, EnvError, InfrastructureError
from agentrl.roles import earned
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    EpisodeSummary,
    Outcome,
    StopReason,
    Task,
)
from agentrl.wire.messages import GroupScore, ScoreGroup

__all__ = [
    "GROUP",
    "SET",
    "Bench",
    "FilterError",
    "about",
    "answers_to",
    "evaluate",
    "generate",
    "group_reward",
    "keep",
    "on_bench",
    "reward",
    "rollout",
    "summary_of",
    "task_of",
]

#: Tokens of an episode, where no flag says how many.
MAX_CONTEXT = 32 * 1024
#: The name of the group, and that of an evaluation set.
GROUP, SET = "00000001", "tried"


def reward(trial: HookTrial) -> Iterator[str]:
    """Have each of some answers rewarded, and one of an evaluation."""
    task = task_of(trial.config)
    answers = answers_to(trial.config, task)

    async def play(bench: Bench) -> None:
        reports.extend([await bench.play(task, answer) for answer in answers])
        evaluated.append(await bench.play(task, answers[0], evaluation=SET))

    reports: list[EpisodeReport] = []
    evaluated: list[EpisodeReport] = []
    on_bench(trial, play)
    yield about(task)
    for answer, report in zip(answers, reports, strict=True):
        yield f"{answer!r} is worth {report.reward:g}{_parts(report)}"
    yield f"in an evaluation {answers[0]!r} is worth {evaluated[0].reward:g}"


def group_reward(trial: HookTrial) -> Iterator[str]:
    """Have some answers rewarded together, and one of an evaluation."""
    task = task_of(trial.config)
    answers = answers_to(trial.config, task)

    async def play(bench: Bench) -> None:
        scores.append(await bench.score(task, answers))
        evaluated.append(await bench.play(task, answers[0], evaluation=SET))

    scores: list[GroupScore] = []
    evaluated: list[EpisodeReport] = []
    on_bench(trial, play)
    yield about(task)
    for answer, worth in zip(answers, scores[0].rewards, strict=True):
        yield f"{answer!r} is worth {worth:g}"
    yield f"in an evaluation, alone, {answers[0]!r} is worth {evaluated[0].reward:g}"


def keep(trial: HookTrial) -> Iterator[str]:
    """Have two groups judged: one of unlike answers, one of equal ones."""
    task = task_of(trial.config)
    answers = answers_to(trial.config, task)
    groups = [answers, [answers[-1]] * len(answers)]

    async def play(bench: Bench) -> None:
        scores.extend([await bench.score(task, group) for group in groups])

    scores: list[GroupScore] = []
    on_bench(trial, play)
    yield about(task)
    for score in scores:
        why = f" ({score.reason})" if score.reason else ""
        fate = "kept" if score.keep else "dropped"
        yield f"a group of the rewards {shown(score.rewards)} is {fate}{why}"


def generate(trial: HookTrial) -> Iterator[str]:
    """Have it play an episode of training, and one of an evaluation."""
    task = task_of(trial.config)
    said = answers_to(trial.config, task)[0]

    async def play(bench: Bench) -> None:
        sets = (None, SET)
        reports.extend([await bench.play(task, said, evaluation=each) for each in sets])

    reports: list[EpisodeReport] = []
    on_bench(trial, play)
    yield f"{about(task)}; the policy says {said!r} at each turn"
    for report, kind in zip(reports, ("an episode", "one of an evaluation"), strict=True):
        tokens = sum(each.num_tokens for each in report.trajectories)
        sampled = sum(each.num_sampled for each in report.trajectories)
        turns = sum(each.num_turns for each in report.trajectories)
        yield (
            f"{kind}: {report.stop_reason}, reward {report.reward:g}{_parts(report)}, {turns} "
            f"turns, {tokens} tokens, of which {sampled} are trained"
        )


def rollout(trial: HookTrial) -> Iterator[str]:
    """Have it play a group in one call."""
    task, size = task_of(trial.config), trial.config.n_samples_per_prompt
    said = answers_to(trial.config, task)[0]
    reports: list[EpisodeReport] = []

    async def play(bench: Bench) -> None:
        reports.extend(await bench.play_group(task, said))

    on_bench(trial, play)
    yield f"{about(task)}; the policy says {said!r} at each turn"
    if any(report.stop_reason is StopReason.GIVEN_UP for report in reports):
        yield f"a group of {size} episodes is taken and left out of what is returned: filtered"
        return
    num_trained = sum(each.num_sampled for report in reports for each in report.trajectories)
    yield (
        f"a group of {size} episodes: rewards {shown([report.reward for report in reports])}, "
        f"{num_trained} tokens are trained"
    )


def evaluate(trial: HookTrial) -> Iterator[str]:
    """Have it play an evaluation."""
    said = answers_to(trial.config, task_of(trial.config))[0]
    reports: list[EpisodeReport] = []

    async def play(bench: Bench) -> None:
        reports.append(await bench.play(call_of(0), said, evaluation=CALLED))

    on_bench(trial, play)
    yield f"the policy says {said!r} at each turn"
    assert reports[0].evaluated is not None
    for name, one in reports[0].evaluated.sets.items():
        parts = [f"set {name}: rewards {shown(one.rewards)}"]
        if one.num_samples > 1:
            parts.append(f"{one.num_samples} samples of each task")
        if one.truncated is not None:
            parts.append(f"{one.truncated} of {len(one.rewards)} truncated")
        yield ", ".join(parts)
    for name, value in reports[0].evaluated.figures.items():
        yield f"{name} is {value:g}"
    sampled = sum(count for _, count in reports[0].evaluated.versions)
    yield f"{sampled} tokens were sampled"


# ---- how they are played -------------------------------------------------------------------------


class FilterError(EnvError):
    """A filter of the user's has raised an error, or has not returned a decision."""


class Bench:
    """A worker of a run, without its buffer."""

    def __init__(self, config: RunConfig) -> None:
        model_dir = Path(str(config.hf_checkpoint))
        self._config = config
        self._chat = open_chat_format(chat_format_of(config), model_dir)
        settings = WorkerSettings.from_config(config, model_dir, MAX_CONTEXT, {})
        self.worker = Worker(settings)

    async def play(
        self, task: Task, answer: str, index: int = 0, evaluation: str | None = None
    ) -> EpisodeReport:
        """An episode whose policy gives `answer` at each turn. Raises what has ended it."""
        return (await self.played(task, answer, index, evaluation)).report

    async def play_group(self, task: Task, answer: str) -> list[EpisodeReport]:
        """A whole group of such episodes, all at once. Raises what has ended the first of them."""
        reports: dict[int, EpisodeReport] = {}

        async def one(index: int) -> None:
            reports[index] = await self.play(task, answer, index)

        with raising_alone():
            async with anyio.create_task_group() as group:
                for index in range(self._config.n_samples_per_prompt):
                    group.start_soon(one, index)
        return [reports[index] for index in sorted(reports)]

    async def played(
        self, task: Task, answer: str, index: int = 0, evaluation: str | None = None
    ) -> PlayedEpisode:
        """The same with its columns."""
        turns = training_turns if evaluation is None else evaluation_turns
        episode = EpisodeAssignment(
            id=EpisodeId(GROUP, index),
            mint=1,
            seed=self._config.rollout_seed + index,
            task=task,
            sampling=turns(self._config),
            evaluation=evaluation,
        )
        policy = Scripted(self._chat, lambda turn: words(answer))
        played = await self.worker.player.play(episode, policy)
        report = played.report
        if report.error is None or report.stop_reason is StopReason.GIVEN_UP:
            return played
        kind = {Outcome.ENGINE_ERROR: InfrastructureError, Outcome.ENV_ERROR: EnvError}
        where = "" if evaluation is None else "in an evaluation, "
        raised = kind.get(report.outcome, DataError)
        raise raised(f"{where}on the answer {answer!r}: {report.outcome}: {report.error}")

    async def score(self, task: Task, answers: Sequence[str]) -> GroupScore:
        """A group of such episodes. Raises EnvError where it has none, FilterError if that is for
        its filter."""
        reports = [await self.play(task, answer, index) for index, answer in enumerate(answers)]
        order = ScoreGroup(GROUP, task, [summary_of(report) for report in reports])
        score = await self.worker.score(order)
        if score.error is not None:
            raised = FilterError if score.rewards else EnvError
            raise raised(f"on a group of {len(answers)} answers: {score.error}")
        return score


def summary_of(report: EpisodeReport) -> EpisodeSummary:
    """What a judge sees of an episode."""
    return EpisodeSummary(
        index=report.id.index,
        outcome=report.outcome,
        stop_reason=report.stop_reason,
        reward=report.reward,
        metrics=report.metrics,
        answer=report.answer,
        earned=earned(report.trajectories, report.facts.env_reward, report.reward),
        sampled=sum(meta.num_sampled for meta in report.trajectories),
    )


@contextmanager
def raising_alone() -> Iterator[None]:
    """Raise the first error of a task group as it is."""
    try:
        yield
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def on_bench(trial: HookTrial, play: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        trial.deadline.watch_loop()
        bench = Bench(trial.config)
        async with bench.worker.endpoint:
            await play(bench)

    anyio.run(main)


def task_of(config: RunConfig) -> Task:
    """The first of the run."""
    cls = load_env(config.env or "single-turn")
    task = first_task(source_of(config, cls))
    if task is None:
        raise ConfigError("--prompt-data gave no first task in time")
    return task


def answers_to(config: RunConfig, task: Task) -> list[str]:
    """The label, and the label as a model may say it; a wrong answer, and none."""
    key = config.label_key or "label"
    label = label_text(find(task.row, key)) if holds(task.row, key) else "yes"
    return [label, f"I think that it is \\boxed{{{label}}}.", "I do not know.", ""]


def about(task: Task) -> str:
    row = msgspec.json.encode(task.row).decode()
    return f"tried on the row {row:.300}"


def _parts(report: EpisodeReport) -> str:
    """What a reward of parts is counted as."""
    found = {name: value for name, value in report.metrics.items() if name.startswith("reward.")}
    return f" {shown(found)}" if found else ""
