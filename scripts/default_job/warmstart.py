"""Trains the model that the default job starts from, from nothing, by the project's own SFT path.

    python scripts/default_job/warmstart.py --output DIR [--steps 4800] [--ranks 2]

Writes random weights and the demonstrations of `demonstrations.py` as a JSONL file, and runs
`train_async.py --loss-type sft_loss` on them: the learner, optimizer and buffer are those of RL.
`--full-share` of the steps shows nothing but full demonstrations (the model learns to search and to
copy), the rest mixes in `--hasty` of the hasty ones (it learns to do so rarely).

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
from pathlib import Path

import msgspec
import torch
from demonstrations import Demonstrator
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).parents[2]
MODEL_DIR = ROOT / "agentrl" / "envs" / "search_r1" / "model"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
#: Optimizer steps of one iteration of the learner: what one rollout batch is shared by.
STEPS_PER_ROLLOUT = 16

_LOG = logging.getLogger("warmstart")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What the training depends on, apart from the machine."""

    steps: int
    full_share: float
    hasty: float
    renamed: float
    seed: int
    batch_size: int
    lr: float
    weight_decay: float
    prompt_loss_weight: float


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


def write_demonstrations(path: Path, recipe: Recipe) -> None:
    """The rows of `train_async.py --loss-type sft_loss`, in the order in which they are learnt."""
    demonstrator, rng = Demonstrator(recipe.seed), random.Random(recipe.seed)
    total = recipe.steps * recipe.batch_size
    with path.open("wb") as file:
        for index in range(total):
            hasty = recipe.hasty if index >= recipe.full_share * total else 0.0
            messages = demonstrator.demonstrate(
                hasty=rng.random() < hasty, renamed=rng.random() < recipe.renamed
            )
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def train(work: Path, recipe: Recipe, ranks: int) -> None:
    """Run the learner over the demonstrations; the model lands in `work/hf`."""
    flags = {
        "loss-type": "sft_loss",
        "prompt-data": work / "demonstrations.jsonl",
        "input-key": "messages",
        "hf-checkpoint": work / "initial",
        "save-hf": work / "hf",
        "run-dir": work / "runs",
        "rollout-batch-size": recipe.batch_size * STEPS_PER_ROLLOUT,
        "num-steps-per-rollout": STEPS_PER_ROLLOUT,
        "num-rollout": recipe.steps // STEPS_PER_ROLLOUT,
        "rollout-max-context-len": 512,
        "prompt-loss-weight": recipe.prompt_loss_weight,
        "lr": recipe.lr,
        "min-lr": recipe.lr / 20,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 50,
        "weight-decay": recipe.weight_decay,
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
    parser.add_argument("--tokenizer", type=Path, default=MODEL_DIR)
    parser.add_argument("--ranks", type=int, default=2, help="learner ranks, one a core")
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--full-share", type=float, default=0.6)
    parser.add_argument("--hasty", type=float, default=0.75)
    parser.add_argument("--renamed", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--prompt-loss-weight", type=float, default=0.3)
    options = vars(parser.parse_args())
    output, tokenizer, ranks = (options.pop(name) for name in ("output", "tokenizer", "ranks"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = Recipe(**options)
    start = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    num_parameters = write_model(output / "initial", tokenizer, recipe.seed)
    write_demonstrations(output / "demonstrations.jsonl", recipe)
    _LOG.info("%s parameters; demonstrations written; %s", num_parameters, recipe)
    train(output, recipe, ranks)
    record = {
        "recipe": recipe,
        "learner_ranks": ranks,
        "seconds": round(time.monotonic() - start),
        "torch": str(torch.__version__),
    }
    (output / "hf" / "training.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    _LOG.info("%s s; model in %s", record["seconds"], output / "hf")


if __name__ == "__main__":
    main()
