"""Trains the model that the default job starts from, from nothing, by the project's own SFT path.

    python -m scripts.default_job.warmstart --output DIR [--ranks 2]

Writes random weights, and teaches them three lessons of `demonstrations.py`, each by a run of
`train_async.py --loss-type sft_loss`: the learner, optimizer and buffer are those of RL.

    skill   `--steps` optimizer steps on full demonstrations: to search, and to copy names
    copy    `--copy-steps` more, `--spliced` of their new names made up: to copy what it never saw
    habit   `--habit-steps` more, `--hasty` of them hasty: to search rarely

The same recipe and seed make the same model up to the rounding of the machine. `training.json`
beside the weights records what was run and how long it took.
"""

import argparse
import logging
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from scripts.default_job.demonstrations import Demonstrator
from scripts.default_job.places import MODEL_DIR, ROOT

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
#: Optimizer steps of one iteration of the learner: what one rollout batch is shared by.
STEPS_PER_ROLLOUT = 16

_LOG = logging.getLogger("warmstart")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What the training depends on, apart from the machine; each field is a flag."""

    steps: int = 6400
    copy_steps: int = 1600
    habit_steps: int = 800
    hasty: float = 0.93
    renamed: float = 0.7
    spliced: float = 0.7
    seed: int = 0
    batch_size: int = 16
    lr: float = 4e-3
    copy_lr: float = 2e-3
    habit_lr: float = 1e-3
    weight_decay: float = 0.1
    prompt_loss_weight: float = 0.3


class Lesson(msgspec.Struct, frozen=True):
    """A run of supervised learning. `hasty`: share of its demonstrations; `spliced`: of the new
    names of those that are renamed."""

    name: str
    steps: int
    lr: float
    seed: int
    spliced: float
    hasty: float


def lessons(recipe: Recipe) -> list[Lesson]:
    """What is learnt, in order."""
    seed, spliced = recipe.seed, recipe.spliced
    return [
        Lesson("skill", recipe.steps, recipe.lr, seed, 0.0, 0.0),
        Lesson("copy", recipe.copy_steps, recipe.copy_lr, seed + 1, spliced, 0.0),
        Lesson("habit", recipe.habit_steps, recipe.habit_lr, seed + 2, spliced, recipe.hasty),
    ]


def write_model(directory: Path, tokenizer: Path, seed: int) -> int:
    """A Qwen3 with random weights, in Hugging Face format; returns its number of parameters."""
    vocabulary = msgspec.json.decode((tokenizer / "tokenizer.json").read_bytes())["model"]
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(vocabulary["vocab"]),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=0).save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    return int(model.num_parameters())


def demonstrations(lesson: Lesson, recipe: Recipe) -> Iterator[list[dict[str, Any]]]:
    """Those of a lesson, in the order in which they are learnt."""
    demonstrator, rng = Demonstrator(lesson.seed), random.Random(lesson.seed)
    for _ in range(lesson.steps * recipe.batch_size):
        yield demonstrator.demonstrate(
            hasty=rng.random() < lesson.hasty,
            renamed=rng.random() < recipe.renamed,
            spliced=lesson.spliced,
        )


def teach(model: Path, lesson: Lesson, recipe: Recipe, work: Path, ranks: int) -> Path:
    """Run the learner over the demonstrations of a lesson; returns where the model lands."""
    data = work / "demonstrations.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    with data.open("wb") as file:
        for messages in demonstrations(lesson, recipe):
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")
    flags = flags_of(lesson, recipe) | {
        "prompt-data": data,
        "hf-checkpoint": model,
        "save-hf": work / "hf",
        "run-dir": work / "runs",
        "actor-num-gpus-per-node": ranks,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(ROOT / "train_async.py"), *words, "--calculate-per-token-loss"]
    subprocess.run(command, check=True)
    return work / "hf"


def flags_of(lesson: Lesson, recipe: Recipe) -> dict[str, object]:
    """How a lesson is learnt, wherever it is."""
    return {
        "loss-type": "sft_loss",
        "input-key": "messages",
        "rollout-batch-size": recipe.batch_size * STEPS_PER_ROLLOUT,
        "num-steps-per-rollout": STEPS_PER_ROLLOUT,
        "num-rollout": lesson.steps // STEPS_PER_ROLLOUT,
        "rollout-max-context-len": 512,
        "lr": lesson.lr,
        "min-lr": lesson.lr / 20,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 50,
        "weight-decay": recipe.weight_decay,
        "adam-beta2": 0.95,
        "seed": lesson.seed,
        "prompt-loss-weight": recipe.prompt_loss_weight,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2, help="learner ranks, one a core")
    parser.add_argument("--tokenizer", type=Path, default=MODEL_DIR)
    for field in msgspec.structs.fields(Recipe):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=field.type, default=field.default)
    return parser.parse_args()


def main() -> None:
    options = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = msgspec.convert(vars(options), Recipe)
    start = time.monotonic()
    model = options.output / "initial"
    num_parameters = write_model(model, options.tokenizer, recipe.seed)
    _LOG.info("%s parameters; %s", num_parameters, recipe)
    for lesson in lessons(recipe):
        model = teach(model, lesson, recipe, options.output / lesson.name, options.ranks)
    shutil.copytree(model, options.output / "hf")
    seconds = round(time.monotonic() - start)
    record = {"recipe": recipe, "learner_ranks": options.ranks, "seconds": seconds}
    record["torch"] = str(torch.__version__)
    written = options.output / "hf" / "training.json"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    _LOG.info("%s s; model in %s", seconds, options.output / "hf")


if __name__ == "__main__":
    main()
