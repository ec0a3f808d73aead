"""Writes the card of the default job's model from the records of its training and its scores.

    python scripts/default_job/model_card.py [--model DIR]

Reads `training.json` (warmstart.py) and `scores.json` (evaluate.py --json), writes `README.md`, all
in the model directory, so that no figure of the card is typed by hand.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

MODEL_DIR = Path(__file__).parents[2] / "agentrl" / "envs" / "search_r1" / "model"

CARD = """\
# Model that the default job starts from

A Qwen3-architecture model trained from nothing, on one CPU core, by supervised learning on
questions of the corpus' `warm` split. It can search, and mostly does not: in {hasty:.0%} of what
it was shown after the first {full_share:.0%} of its training, the answer comes too early or is a
guess. Reinforcement learning is to find out that searching pays, so a rise of its reward is to be
read first as learning to use the tool, and only then as using it better. The model knows nothing
else and is of no use outside this job.

## How it was made

    python scripts/default_job/build_corpus.py
    python scripts/default_job/build_tokenizer.py
    OMP_NUM_THREADS=1 python scripts/default_job/warmstart.py {flags}
    OMP_NUM_THREADS=1 python scripts/default_job/evaluate.py --json scores.json

Training took {seconds} s of wall time on one core of a machine shared with other work, with torch
{torch}. The recipe is the best of five by held-out scores, one seed each, so the scores below are
where the default job starts and no claim about models trained this way. With the same steps and
haste but a first phase less than half as long, the model had not learnt to copy.

## Scores

{table}

Exact match of the final answer over `n` episodes; *searched*: share of episodes with a search;
*malformed*: share with a call that cannot be read or run, or a last turn without an answer.
`heldout` and `hard` ask about entities that were in no training question; `train` is what RL trains
on. Of groups of 8 episodes of one RL question, {signal:.1%} have rewards that differ; the others
teach GRPO nothing.
"""


def table(scores: list[dict[str, Any]]) -> str:
    head = (
        "| questions | temperature | n | exact match | one hop | two hops | searched | malformed |"
    )
    lines = [head, "| --- " * 8 + "|"]
    for score in scores:
        shares = ("exact_match", "one_hop", "two_hop", "searched", "malformed")
        one_hop_missing = score["questions"] == "hard"
        cells = [
            "-" if name == "one_hop" and one_hop_missing else f"{100 * score[name]:.1f} %"
            for name in shares
        ]
        first = [score["questions"], f"{score['temperature']:g}", str(score["episodes"])]
        lines.append("| " + " | ".join(first + cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    model_dir = parser.parse_args().model
    training = msgspec.json.decode((model_dir / "training.json").read_bytes())
    scores = msgspec.json.decode((model_dir / "scores.json").read_bytes())
    recipe = training["recipe"]
    wanted = ("steps", "full_share", "hasty", "renamed", "seed")
    card = CARD.format(
        **recipe,
        flags=" ".join(f"--{name.replace('_', '-')} {recipe[name]}" for name in wanted),
        seconds=training["seconds"],
        torch=training["torch"],
        table=table(scores["scores"]),
        signal=scores["groups_with_signal"],
    )
    (model_dir / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
