"""Log functions, tried on a group of the first task that a worker plays (`worker`): as an
iteration, from a file as a learner writes it; as an evaluation; and as two scored groups,
of which one is dropped."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.actors.report import PlayedEpisode
from agentrl.cli.hooks.noted import shown
from agentrl.cli.hooks.trial import HookTrial
from agentrl.cli.hooks.worker import (
    GROUP,
    SET,
    Bench,
    about,
    answers_to,
    on_bench,
    summary_of,
    task_of,
)
from agentrl.envs.slime_logs.functions import ALL_SAMPLES, EVALUATION, ROLLOUT, logged
from agentrl.envs.slime_logs.process import decoder
from agentrl.envs.slime_logs.samples import ScoredEpisode, keys_of, of_groups, samples_of, scored
from agentrl.errors import HookError
from agentrl.rollout_file import Columns, Rollouts, write_rollouts
from agentrl.types import (
    GroupRows,
    LeaseHeader,
    PayloadRef,
    Task,
    TrajectoryRow,
)
from agentrl.wire.messages import Logged, ScoredGroup

__all__ = ["all_samples", "evaluation", "rollouts"]


def rollouts(trial: HookTrial) -> Iterator[str]:
    """Have it log an iteration. Raises HookError for what a run would tell."""
    task, played = _played(trial, None)
    with TemporaryDirectory(prefix="agentrl-log-") as folder:
        file = Path(folder, "lease")
        _write(file, task, played)
        samples = samples_of(file, trial.config, decoder(trial.config))
        found = logged(ROLLOUT, trial.config, 1, samples, 1.0)
    yield from _told(found, task, f"{len(samples)} samples", "rollout/*")


def evaluation(trial: HookTrial) -> Iterator[str]:
    """Have it log an evaluation. Raises HookError for what a run would tell."""
    task, played = _played(trial, SET)
    episodes = [
        ScoredEpisode(
            task=0,
            index=index,
            reward=each.report.reward,
            stop_reason=each.report.stop_reason,
            num_sampled=sum(meta.num_sampled for meta in each.report.trajectories),
            answer=each.report.answer,
            metrics=each.report.metrics,
        )
        for index, each in enumerate(played)
    ]
    data = {SET: scored([task.row], keys_of(trial.config), episodes)}
    found = logged(EVALUATION, trial.config, 1, data)
    yield from _told(found, task, f"a set of {len(episodes)} samples", "eval/*")


def all_samples(trial: HookTrial) -> Iterator[str]:
    """Have it see a group that is kept, and the same one dropped. Raises HookError for what a run
    would tell."""
    task, played = _played(trial, None)
    episodes = [summary_of(each.report) for each in played]
    groups = [ScoredGroup(1, task, episodes, True), ScoredGroup(2, task, episodes, False, "tried")]
    found = logged(ALL_SAMPLES, trial.config, 1, of_groups(groups, trial.config))
    yield from _told(found, task, f"2 groups of {len(episodes)} samples", "")


def _played(trial: HookTrial, evaluation: str | None) -> tuple[Task, list[PlayedEpisode]]:
    task = task_of(trial.config)
    found: list[PlayedEpisode] = []

    async def play(bench: Bench) -> None:
        for index, answer in enumerate(answers_to(trial.config, task)):
            found.append(await bench.played(task, answer, index, evaluation))

    on_bench(trial, play)
    return task, found


def _write(file: Path, task: Task, played: Sequence[PlayedEpisode]) -> None:
    reports = [each.report for each in played]
    group = GroupRows(
        group=GROUP,
        mint=1,
        task=task.id,
        episodes=[report.id for report in reports],
        rewards=[report.reward for report in reports],
        metrics=[report.metrics for report in reports],
        trajectories=[
            TrajectoryRow(report.id, meta, PayloadRef("", 0, 0, 0, 0))
            for report in reports
            for meta in report.trajectories
        ],
        stop_reasons=[report.stop_reason for report in reports],
        row=task.row,
    )

    def columns(_group: GroupRows) -> Iterator[Columns]:
        for each in played:
            left = iter(each.columns)
            for layout in each.report.layouts:
                yield [next(left) for _ in layout]

    write_rollouts(file, Rollouts(LeaseHeader(1, [group]), []), columns)


def _told(found: Logged, task: Task, given: str, names: str) -> Iterator[str]:
    if found.told:
        raise HookError(found.told)
    yield about(task)
    yield f"given {given}, it logged {shown(found.figures)}"
    if found.alone:
        yield f"it returned True: TensorBoard and trackers get these in place of {names}"
