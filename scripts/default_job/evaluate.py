"""Scores a model of the default job without a server: held-out exact match and RL signal.

    OMP_NUM_THREADS=1 python -m scripts.default_job.evaluate [--model DIR] [--sets SET ...]
        [--force-search] [--json FILE]

Prints, for each question set and temperature, exact match with its 95 % interval (Wilson) and how
the model used its tool, and for questions of the RL split the share of groups of 8 whose rewards
differ: where there is no difference, GRPO learns nothing.

With `--force-search` each evaluation set is played once more, greedily, with a first turn that must
be a search: what the model can do when it searches, apart from whether it does. Of a two-hop
question only that first search is forced.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec
import torch
from scipy.stats import binomtest

from agentrl.disk import replace_file
from agentrl.envs.search_r1 import SearchR1Source, eval_tasks
from agentrl.envs.search_r1.questions import EVAL_SETS
from agentrl.types import Task
from scripts.default_job.offline import Played, Policy, play
from scripts.default_job.places import MODEL_DIR

GROUP, NUM_GROUPS = 8, 64
#: The set of RL questions, played in groups.
TRAIN = "train"
#: Temperatures at which a set is played; greedily where it is not named.
TEMPERATURES = {"heldout": (0.0, 1.0), TRAIN: (1.0,)}


class Score(msgspec.Struct, frozen=True):
    """Means over the episodes of a question set; `low` and `high` bound exact match at 95 %.

    `malformed`: a call that cannot be read or run, or a last turn without an answer; `unfinished`:
    still searching after the last turn.
    """

    questions: str
    temperature: float
    episodes: int
    exact_match: float
    low: float
    high: float
    one_hop: float
    two_hop: float
    searched: float
    searches: float
    malformed: float
    unfinished: float


def summarize(questions: str, temperature: float, played: Sequence[Played]) -> Score:
    hops = {n: [e.reward for e in played if len(e.task.row["relations"]) == n] for n in (1, 2)}
    exact_match = statistics.fmean(e.reward for e in played)
    right = round(sum(e.reward for e in played))
    low, high = binomtest(right, len(played)).proportion_ci(method="wilson")
    return Score(
        questions=questions,
        temperature=temperature,
        episodes=len(played),
        exact_match=exact_match,
        low=float(low),
        high=float(high),
        one_hop=statistics.fmean(hops[1] or [0.0]),
        two_hop=statistics.fmean(hops[2] or [0.0]),
        searched=statistics.fmean(e.searches > 0 for e in played),
        searches=statistics.fmean(e.searches for e in played),
        malformed=statistics.fmean(e.malformed for e in played),
        unfinished=statistics.fmean(not e.finished for e in played),
    )


def signal_share(played: Sequence[Played]) -> float:
    """Share of consecutive groups of GROUP episodes whose rewards are not all equal."""
    rewards = [episode.reward for episode in played]
    groups = [rewards[at : at + GROUP] for at in range(0, len(rewards), GROUP)]
    return statistics.fmean(len(set(group)) > 1 for group in groups)


class Figures(msgspec.Struct):
    """What the model card is made of; no signal was measured where it is null."""

    scores: list[Score] = []
    groups_with_signal: float | None = None


async def evaluate(
    policy: Policy, sets: Mapping[str, Sequence[Task]], *, force_search: bool
) -> Figures:
    """Play the sets by their names, and those of evaluation with a search first too if that is
    wanted."""
    figures = Figures()
    for name, tasks in sets.items():
        numbered = list(enumerate(tasks))
        for temperature in TEMPERATURES.get(name, (0.0,)):
            played = await play(policy, numbered, temperature)
            figures.scores.append(summarize(name, temperature, played))
            if name == TRAIN:
                figures.groups_with_signal = signal_share(played)
        if force_search and name != TRAIN:
            played = await play(policy, numbered, 0.0, force_search=True)
            figures.scores.append(summarize(f"{name} forced", 0.0, played))
    return figures


def tasks_of(name: str) -> list[Task]:
    """The questions of a set, or RL questions in groups."""
    if name == TRAIN:
        source = SearchR1Source(seed=0)
        return [source.task(index) for index in range(NUM_GROUPS) for _ in range(GROUP)]
    return eval_tasks(name)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    sets = [*EVAL_SETS, TRAIN]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--sets", nargs="+", choices=sets, default=["heldout", "hard", TRAIN])
    parser.add_argument("--force-search", action="store_true", help="sets with a search first, too")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sets = {name: tasks_of(name) for name in options.sets}
    play_all = partial(evaluate, Policy(options.model), sets, force_search=options.force_search)
    figures = anyio.run(play_all)
    for score in figures.scores:
        values = msgspec.structs.asdict(score).items()
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else str(v) for k, v in values))
    if figures.groups_with_signal is not None:
        print(f"groups with signal {figures.groups_with_signal:.3f}")
    if options.json:
        replace_file(options.json, msgspec.json.format(msgspec.json.encode(figures), indent=2))


if __name__ == "__main__":
    main()
