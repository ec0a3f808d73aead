"""Plays fixed held-out questions with two models and writes the conversations, to be read.

    OMP_NUM_THREADS=1 python -m scripts.default_job.samples --before DIR --after DIR
        [--questions NUMBER ...] [--set heldout] [--output FILE]

Greedy, by the same offline episodes as `evaluate.py`: what is shown is what is scored. Questions
are named by their numbers in the set, from 0. The default ones were chosen by how the untrained
model plays them alone: one hop that it searches and gets right, two hops, and one hop that it
answers wrongly at once.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import anyio
import torch

from agentrl.envs.search_r1 import eval_tasks
from agentrl.envs.search_r1.answer import final_answer
from agentrl.envs.search_r1.questions import EVAL_SETS
from scripts.default_job.offline import Played, Policy, Turn, play
from scripts.default_job.places import MODEL_DIR

QUESTIONS = (2, 6, 14)
HOPS = {1: "one hop", 2: "two hops"}


async def play_questions(model_dir: Path, numbers: Sequence[int], eval_set: str) -> list[Played]:
    """One greedy episode of each question."""
    tasks = eval_tasks(eval_set)
    return await play(Policy(model_dir), [(number, tasks[number]) for number in numbers], 0.0)


def section(number: int, eval_set: str, before: Played, after: Played) -> str:
    """A question in markdown, and how it went with each model."""
    row = before.task.row
    hops = HOPS[len(row["relations"])]
    return "\n\n".join(
        [
            f"## {row['question']}",
            f"Question {number} of `{eval_set}`, {hops}. The right answer is `{row['answer']}`.",
            "### Before",
            conversation(before),
            "### After",
            conversation(after),
        ]
    )


def conversation(played: Played) -> str:
    """An episode in markdown: each turn as the model wrote it, and what it was told then."""
    answer = final_answer(played.turns[-1].said)
    outcome = "No answer" if answer is None else f"Answer `{answer}`"
    turns = [part for turn in played.turns for part in _turn(turn)]
    return "\n\n".join([*turns, f"{outcome}: reward {played.reward:g}."])


def _turn(turn: Turn) -> list[str]:
    wrote = re.sub(r"<\|\w+\|>$", "", turn.said).strip()
    ticks = max((len(run) for run in re.findall("`+", wrote)), default=0)
    fence = "`" * max(3, ticks + 1)
    told = ["\n".join(f"> {line.strip()}  " for line in text.splitlines()) for text in turn.told]
    return [f"{fence}text\n{wrote}\n{fence}", *told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, default=MODEL_DIR, help="model before training")
    parser.add_argument("--after", type=Path, required=True, help="model after training")
    parser.add_argument("--questions", type=int, nargs="+", default=QUESTIONS, metavar="NUMBER")
    parser.add_argument("--set", choices=EVAL_SETS, default="heldout", help="evaluation set")
    parser.add_argument("--output", type=Path, help="markdown file; default: the terminal")
    options = parser.parse_args()
    size = len(eval_tasks(options.set))
    if unknown := [number for number in options.questions if not 0 <= number < size]:
        parser.error(f"{options.set} has the questions 0 to {size - 1}, not {unknown}")
    torch.set_num_threads(1)
    before, after = (
        anyio.run(play_questions, model, options.questions, options.set)
        for model in (options.before, options.after)
    )
    sections = [
        section(number, options.set, *pair)
        for number, *pair in zip(options.questions, before, after, strict=True)
    ]
    text = "\n\n".join(sections) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
