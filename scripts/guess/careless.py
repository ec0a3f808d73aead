"""Trains a model that plays `guess` by the rules, and badly, by the project's own SFT path.

    python -m scripts.guess.careless --output DIR [--ranks 1]

Random weights of the shape of the default job's model, with its tokenizer, learn from games of a
careless player (`train_async.py --loss-type sft_loss`): a `--creep` share of its guesses is the
lowest number that the hints have left, a `--heed` share is any number that they have left, and the
others are any number of the range, whatever the hints say. What is left for RL is to heed the hints
always, and to guess where most is learnt. The games are training games; evaluated ones are never
shown. The model lands in `DIR/hf`, and what made it in `DIR/hf/training.json`.
"""

import random
import shutil
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
from scripts.default_job import lesson

#: The model whose shape and tokenizer are taken.
SHAPE = Path(str(files("agentrl.envs.search_r1") / "model"))


class Recipe(lesson.Course, frozen=True, kw_only=True):
    """What the model depends on, apart from the machine."""

    creep: float
    heed: float


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


async def games(recipe: Recipe) -> list[list[dict[str, Any]]]:
    """All that are learnt from."""
    rng = random.Random(f"guess/careless/{recipe.seed}")
    return [await play(rng, recipe) for _ in range(recipe.num_demonstrations)]


def write_initial(folder: Path, seed: int) -> None:
    """Random weights, and the tokenizer."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(AutoConfig.from_pretrained(SHAPE))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(SHAPE / name, folder / name)


def main() -> None:
    parser = lesson.parser(__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--creep", type=float, default=0.4, help="share of guesses, 0..1")
    parser.add_argument("--heed", type=float, default=0.2, help="share of guesses, 0..1")
    parser.add_argument("--lr", type=float, default=4e-3)
    options = vars(parser.parse_args())
    output, ranks = options.pop("output"), options.pop("ranks")
    recipe = Recipe(**options)
    write_initial(output / "initial", recipe.seed)
    data = output / "games.jsonl"
    lesson.write_rows(data, anyio.run(games, recipe))
    model = lesson.teach(output / "initial", data, recipe, ranks)
    lesson.save_recipe(model, recipe, ranks)


if __name__ == "__main__":
    main()
