"""Writes the card of the default job's model from the records of its training and its scores.

    python -m scripts.default_job.model_card [--model DIR]

Reads `training.json` (warmstart.py) and `scores.json` (evaluate.py --json), writes `README.md`, all
in the model directory, so that no figure of the card is typed by hand.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from scripts.default_job.places import MODEL_DIR
from scripts.pages import rows

CARD = """\
# Model that the default job starts from

A Qwen3-architecture model trained from nothing, on two CPU cores, by supervised learning on
questions of the corpus' `warm` split, through the same learner that RL uses. It can search, and
mostly does not: {steps:,} steps taught it to search and to copy what it finds, {copy_steps:,} to
copy names that it had never seen, and {habit_steps:,} a bad habit: in {hasty:.0%} of what they
showed, the answer comes too early or is a guess. Reinforcement learning is to find out that
searching pays, so a rise of its reward is to be read first as learning to use the tool, and only
then as using it better. The model knows nothing else and is of no use outside this job.

## How it was made

    make warmstart

which is `scripts/default_job/build_tokenizer.py`, then

    python -m scripts.default_job.warmstart {flags}

in {seconds} s of wall time on {learner_ranks} learner ranks, one core each, with torch {torch};
the same steps and seed make it again up to the rounding of the machine.

## Scores

{table}

Exact match of the final answer over `n` episodes, with its 95 % interval; *searched*: share of
episodes with a search; *malformed*: share with a call that cannot be read or run, or a last turn
without an answer. `heldout` and `hard` (two hops) ask about entities that were in no training
question; `train` asks about those that RL trains on, which the warm start did not see. *forced*:
the first turn had to be a search, which tells what the model can do from what it does. Of groups of
8 episodes of one RL question, {signal:.1%} have rewards that differ; the others teach GRPO nothing.
"""


def table(scores: list[dict[str, Any]]) -> str:
    names = ("questions", "temperature", "n", "exact match", "95 %", "one hop", "two hops")
    lines = []
    for score in scores:
        shares = ("exact_match", "one_hop", "two_hop", "searched", "malformed")
        one_hop_missing = score["questions"].startswith("hard")
        cells = [
            "-" if name == "one_hop" and one_hop_missing else f"{100 * score[name]:.1f} %"
            for name in shares
        ]
        cells.insert(1, f"{100 * score['low']:.1f}-{100 * score['high']:.1f}")
        first = [score["questions"], f"{score['temperature']:g}", str(score["episodes"])]
        lines.append(first + cells)
    return "\n".join(rows([*names, "searched", "malformed"], lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    model_dir = parser.parse_args().model
    training = msgspec.json.decode((model_dir / "training.json").read_bytes())
    scores = msgspec.json.decode((model_dir / "scores.json").read_bytes())
    recipe = training["recipe"]
    wanted = ("steps", "copy_steps", "habit_steps", "hasty", "renamed", "spliced", "seed")
    card = CARD.format(
        **recipe,
        flags=" ".join(f"--{name.replace('_', '-')} {recipe[name]}" for name in wanted),
        seconds=training["seconds"],
        learner_ranks=training["learner_ranks"],
        torch=training["torch"],
        table=table(scores["scores"]),
        signal=scores["groups_with_signal"],
    )
    (model_dir / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
