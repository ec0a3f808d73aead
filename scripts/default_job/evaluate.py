"""Scores a model of the default job without a server: held-out exact match and RL signal.

    OMP_NUM_THREADS=1 python -m scripts.default_job.evaluate [--model DIR] [--sets SET ...]
        [--force-search] [--limit N] [--json FILE]

Prints, for each question set and temperature, exact match with its 95 % interval (Wilson) and how
the model used its tool, and for questions of the RL split the share of groups of 8 whose rewards
differ: where there is no difference, GRPO learns nothing.

With `--force-search` each evaluation set is played once more, greedily, with a first turn that must
be a search: what the model can do when it searches, apart from whether it does. Of a two-hop
question only that first search is forced.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

GROUP = 8
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


def summarise(questions: str, temperature: float, played: Sequence[Played]) -> Score:
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


class Evaluation:
    """Plays sets with one policy and keeps the scores."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.scores: list[Score] = []
        self.groups_with_signal: float | None = None

    async def play(self, name: str, tasks: Sequence[Task], temperature: float) -> None:
        """Play a set, or the RL questions in groups."""
        played = await play(self._policy, list(enumerate(tasks)), temperature)
        self.scores.append(summarise(name, temperature, played))
        if name == TRAIN:
            self.groups_with_signal = signal_share(played)

    async def play_forced(self, name: str, tasks: Sequence[Task]) -> None:
        """Play a set greedily with a search first."""
        played = await play(self._policy, list(enumerate(tasks)), 0.0, force_search=True)
        self.scores.append(summarise(f"{name} forced", 0.0, played))

    def figures(self) -> dict[str, Any]:
        """What the model card is made of; no signal was measured where it is null."""
        return {
            "scores": msgspec.to_builtins(self.scores),
            "groups_with_signal": self.groups_with_signal,
        }


async def evaluate(options: argparse.Namespace) -> Evaluation:
    evaluation = Evaluation(Policy(options.model))
    for name in options.sets:
        if name == TRAIN:
            source = SearchR1Source(seed=0)
            tasks = [source.task(index) for index in range(options.groups) for _ in range(GROUP)]
        else:
            tasks = eval_tasks(name)[: options.limit]
        for temperature in TEMPERATURES.get(name, (0.0,)):
            await evaluation.play(name, tasks, temperature)
        if options.force_search and name != TRAIN:
            await evaluation.play_forced(name, tasks)
    return evaluation


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    sets = [*EVAL_SETS, TRAIN]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--sets", nargs="+", choices=sets, default=["heldout", "hard", TRAIN])
    parser.add_argument("--limit", type=int, help="only the first questions of a set (not train)")
    parser.add_argument("--groups", type=int, default=64, help="groups of 8 on RL questions")
    parser.add_argument("--force-search", action="store_true", help="sets with a search first, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    evaluation = anyio.run(evaluate, options)
    figures = evaluation.figures()
    for score in figures["scores"]:
        print(
            "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else str(v) for k, v in score.items())
        )
    if evaluation.groups_with_signal is not None:
        print(f"groups with signal {evaluation.groups_with_signal:.3f}")
    if options.json:
        replace_file(options.json, msgspec.json.format(msgspec.json.encode(figures), indent=2))


if __name__ == "__main__":
    main()
