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

import logging
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from scripts.default_job.demonstrations import Demonstrator
from scripts.default_job.lesson import Course, save_recipe, write_rows
from scripts.default_job.lesson import parser as lesson_parser
from scripts.default_job.lesson import teach as learn
from scripts.default_job.places import MODEL_DIR

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_LOG = logging.getLogger("warmstart")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What the training depends on, apart from the machine."""

    steps: int
    copy_steps: int
    habit_steps: int
    hasty: float
    renamed: float
    spliced: float
    seed: int
    batch_size: int
    lr: float
    copy_lr: float
    habit_lr: float
    weight_decay: float
    prompt_loss_weight: float


class Lesson(msgspec.Struct, frozen=True):
    """A run of supervised learning. `hasty`, `renamed`: shares of its demonstrations; `spliced`: of
    the new names."""

    name: str
    steps: int
    hasty: float
    renamed: float
    spliced: float
    lr: float
    seed: int


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


def read_recipe(model: Path) -> Recipe:
    """The recipe of a model that this program made."""
    record = msgspec.json.decode((model / "training.json").read_bytes())
    return msgspec.convert(record["recipe"], Recipe)


def lessons(recipe: Recipe) -> list[Lesson]:
    """What is learnt, in order."""
    renamed, spliced, seed = recipe.renamed, recipe.spliced, recipe.seed
    return [
        Lesson("skill", recipe.steps, 0.0, renamed, 0.0, recipe.lr, seed),
        Lesson("copy", recipe.copy_steps, 0.0, renamed, spliced, recipe.copy_lr, seed + 1),
        Lesson(
            "habit", recipe.habit_steps, recipe.hasty, renamed, spliced, recipe.habit_lr, seed + 2
        ),
    ]


def demonstrations(lesson: Lesson, recipe: Recipe) -> Iterator[list[dict[str, Any]]]:
    """Those of a lesson, in the order in which they are learnt."""
    demonstrator, rng = Demonstrator(lesson.seed), random.Random(lesson.seed)
    for _ in range(lesson.steps * recipe.batch_size):
        yield demonstrator.demonstrate(
            hasty=rng.random() < lesson.hasty,
            renamed=rng.random() < lesson.renamed,
            spliced=lesson.spliced,
        )


def teach(
    model: Path,
    lesson: Lesson,
    recipe: Recipe,
    work: Path,
    ranks: int,
    more: Mapping[str, object] | None = None,
) -> None:
    """Run the learner over the demonstrations of a lesson. The model lands in `work/hf` unless
    `more`, flags that win over the lesson's own, says otherwise."""
    data = work / "demonstrations.jsonl"
    write_rows(data, demonstrations(lesson, recipe))
    course = Course(
        steps=lesson.steps,
        batch_size=recipe.batch_size,
        lr=lesson.lr,
        seed=lesson.seed,
        weight_decay=recipe.weight_decay,
    )
    flags = {"prompt-loss-weight": recipe.prompt_loss_weight, **(more or {})}
    learn(model, data, course, ranks, flags)


def main() -> None:
    parser = lesson_parser(__doc__.partition("\n")[0])
    parser.set_defaults(ranks=2)
    parser.add_argument("--tokenizer", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, default=6400)
    parser.add_argument("--copy-steps", type=int, default=1600)
    parser.add_argument("--habit-steps", type=int, default=800)
    parser.add_argument("--hasty", type=float, default=0.93)
    parser.add_argument("--renamed", type=float, default=0.7)
    parser.add_argument("--spliced", type=float, default=0.7)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--copy-lr", type=float, default=2e-3)
    parser.add_argument("--habit-lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--prompt-loss-weight", type=float, default=0.3)
    options = vars(parser.parse_args())
    output, tokenizer, ranks = (options.pop(name) for name in ("output", "tokenizer", "ranks"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = Recipe(**options)
    start = time.monotonic()
    num_parameters = write_model(output / "initial", tokenizer, recipe.seed)
    _LOG.info("%s parameters; %s", num_parameters, recipe)
    model = output / "initial"
    for lesson in lessons(recipe):
        teach(model, lesson, recipe, output / lesson.name, ranks)
        model = output / lesson.name / "hf"
    shutil.copytree(model, output / "hf")
    seconds = round(time.monotonic() - start)
    save_recipe(output / "hf", recipe, ranks, seconds=seconds)
    _LOG.info("%s s; model in %s", seconds, output / "hf")


if __name__ == "__main__":
    main()
