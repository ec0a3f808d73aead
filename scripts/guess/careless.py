"""Trains a model that plays `guess` by the rules, and badly, by the project's own SFT path.

    python scripts/guess/careless.py --output DIR [--ranks 1]

Random weights of the shape of the default job's model, with its tokenizer, learn from games of a
careless player (`train_async.py --loss-type sft_loss`): a `--creep` share of its guesses is the
lowest number that the hints have left, a `--heed` share is any number that they have left, and the
others are any number of the range, whatever the hints say. What is left for RL is to heed the hints
always, and to guess where most is learnt. The games are training games; evaluated ones are never
shown. The model lands in `DIR/hf`, and what made it in `DIR/hf/training.json`.
"""

import argparse
import random
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import msgspec
import torch
from transformers import AutoConfig, Qwen3ForCausalLM

from agentrl.envs.guess.env import GuessEnv
from agentrl.envs.guess.games import draw
from agentrl.envs.messages import AssistantTurn

ROOT = Path(__file__).resolve().parents[2]
#: The model whose shape and tokenizer are taken.
SHAPE = Path(str(files("agentrl.envs.search_r1") / "model"))
#: Optimizer steps of one iteration of the learner: what one rollout batch is shared by.
STEPS_PER_ROLLOUT = 16


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What the model depends on, apart from the machine."""

    steps: int
    batch_size: int
    creep: float
    heed: float
    lr: float
    seed: int


async def play(rng: random.Random, recipe: Recipe) -> list[dict[str, Any]]:
    """A whole game of the careless player, as messages of OpenAI's chat API."""
    game, env = draw(rng, evaluation=False), GuessEnv()
    (prompt,) = await env.reset(seed=0, task=msgspec.structs.asdict(game))
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt.content}]
    low, high = game.low, game.high
    while True:
        mood = rng.random()
        if mood < recipe.creep:
            guess = low
        elif mood < recipe.creep + recipe.heed:
            guess = rng.randint(low, high)
        else:
            guess = rng.randint(game.low, game.high)
        messages.append({"role": "assistant", "content": str(guess)})
        step = await env.step(AssistantTurn(str(guess), [], None, "stop", 0))
        if step.done:
            return messages
        messages.append({"role": "user", "content": step.messages[0].content})
        low = max(low, guess + 1) if guess < game.number else low
        high = min(high, guess - 1) if guess > game.number else high


async def write_games(path: Path, recipe: Recipe) -> None:
    """The rows of `train_async.py --loss-type sft_loss`, in the order in which they are learnt."""
    rng = random.Random(f"guess/careless/{recipe.seed}")
    with path.open("wb") as file:
        for _ in range(recipe.steps * recipe.batch_size):
            messages = await play(rng, recipe)
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def write_initial(folder: Path, seed: int) -> None:
    """Random weights, and the tokenizer."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(AutoConfig.from_pretrained(SHAPE))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(SHAPE / name, folder / name)


def teach(output: Path, recipe: Recipe, ranks: int) -> None:
    """Run the learner over the games that lie in `output`."""
    flags = {
        "loss-type": "sft_loss",
        "prompt-data": output / "games.jsonl",
        "input-key": "messages",
        "hf-checkpoint": output / "initial",
        "save-hf": output / "hf",
        "run-dir": output / "runs",
        "rollout-batch-size": recipe.batch_size * STEPS_PER_ROLLOUT,
        "num-steps-per-rollout": STEPS_PER_ROLLOUT,
        "num-rollout": recipe.steps // STEPS_PER_ROLLOUT,
        "rollout-max-context-len": 512,
        "lr": recipe.lr,
        "min-lr": recipe.lr / 20,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 50,
        "weight-decay": 0.1,
        "adam-beta2": 0.95,
        "actor-num-gpus-per-node": ranks,
        "seed": recipe.seed,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(ROOT / "train_async.py"), *words, "--calculate-per-token-loss"]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1, help="learner ranks, one a core")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--creep", type=float, default=0.4, help="share of guesses, 0..1")
    parser.add_argument("--heed", type=float, default=0.2, help="share of guesses, 0..1")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    output, ranks = options.pop("output"), options.pop("ranks")
    recipe = Recipe(**options)
    write_initial(output / "initial", recipe.seed)
    anyio.run(write_games, output / "games.jsonl", recipe)
    teach(output, recipe, ranks)
    record = {"recipe": recipe, "learner_ranks": ranks, "torch": str(torch.__version__)}
    (output / "hf" / "training.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))


if __name__ == "__main__":
    main()
