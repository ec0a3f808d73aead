"""Trains the model that the default job starts from, from nothing, on one CPU core.

    OMP_NUM_THREADS=1 python scripts/default_job/warmstart.py --output DIR [--steps 2600]

Supervised learning on the demonstrations of `demonstrations.py` in two phases: `--full-share` of
the steps shows nothing but full demonstrations (the model learns to search and to copy), the rest
mixes in `--hasty` of the hasty ones (it learns to do so rarely). Matrices learn by Muon, embedding
and norms by AdamW; the forward and backward pass run in bfloat16 on a copy of float32 weights.

The same recipe and seed make the same model up to the rounding of the machine. `training.json`
beside the weights records what was run and how long it took.
"""

import argparse
import copy
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from demonstrations import Demonstration, Demonstrator
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

MODEL_DIR = Path(__file__).parents[2] / "agentrl" / "envs" / "search_r1" / "model"
WARMUP_STEPS = 50
#: Share of the steps, at the end, over which the learning rate falls to a twentieth.
DECAY_SHARE = 0.3
#: Batches drawn together, so that demonstrations of like length share one.
POOL = 8

_LOG = logging.getLogger("warmstart")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What the training depends on, apart from the machine."""

    steps: int
    full_share: float
    hasty: float
    renamed: float
    seed: int
    batch_size: int
    muon_lr: float
    adamw_lr: float
    weight_decay: float


class Optimizers:
    """Muon for matrices and AdamW for the rest, under one schedule."""

    def __init__(self, model: Qwen3ForCausalLM, recipe: Recipe) -> None:
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name
            (matrices if is_matrix else others).append(parameter)
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (
                torch.optim.Muon(
                    matrices, lr=recipe.muon_lr, momentum=0.95, weight_decay=recipe.weight_decay
                ),
                recipe.muon_lr,
            ),
            (
                torch.optim.AdamW(others, lr=recipe.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
                recipe.adamw_lr,
            ),
        ]

    def step(self, scale: float) -> None:
        """One step at `scale` times each learning rate."""
        for optimizer, lr in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()


def new_model(tokenizer_dir: Path, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 of 0.85 M parameters with random weights."""
    vocabulary = msgspec.json.decode((tokenizer_dir / "tokenizer.json").read_bytes())["model"]
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
    return Qwen3ForCausalLM(config)


def batches(
    demonstrator: Demonstrator, rng: random.Random, recipe: Recipe, hasty: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`POOL` batches of token ids (B, T) and loss weights (B, T); lengths alike within a batch."""
    size = recipe.batch_size
    pool = [
        demonstrator.demonstrate(hasty=rng.random() < hasty, renamed=rng.random() < recipe.renamed)
        for _ in range(POOL * size)
    ]
    pool.sort(key=lambda demonstration: len(demonstration[0]))
    cuts = list(range(0, len(pool), size))
    rng.shuffle(cuts)
    for cut in cuts:
        yield pad(pool[cut : cut + size])


def pad(batch: list[Demonstration]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(ids) for ids, _ in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for row, (ids, weight) in enumerate(batch):
        tokens[row, : len(ids)] = torch.tensor(ids)
        weights[row, : len(ids)] = torch.tensor(weight)
    return tokens, weights


def weighted_loss(
    model: Qwen3ForCausalLM, tokens: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weighted mean of the next-token loss; logits are made only where the weight is not 0."""
    targets, weight = tokens[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
    chosen = weight.nonzero()[:, 0]
    hidden = model.model(tokens).last_hidden_state[:, :-1].flatten(0, 1)[chosen]
    loss = torch.nn.functional.cross_entropy(
        model.lm_head(hidden).float(), targets[chosen], reduction="none"
    )
    return (loss * weight[chosen]).sum() / weight.sum()


def learning_rate_scale(step: int, num_steps: int) -> float:
    """A trapezoid: linear warm-up, flat, linear decay to a twentieth over `DECAY_SHARE`."""
    decay = min(1.0, (1.0 - step / num_steps) / DECAY_SHARE)
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.05 + 0.95 * decay)


def train(model: Qwen3ForCausalLM, demonstrator: Demonstrator, recipe: Recipe) -> None:
    """Train `model` in place."""
    optimizers = Optimizers(model, recipe)
    half = copy.deepcopy(model).to(torch.bfloat16)
    masters, copies = list(model.parameters()), list(half.parameters())
    rng = random.Random(recipe.seed)
    for start in range(0, recipe.steps, POOL):
        hasty = recipe.hasty if start >= recipe.full_share * recipe.steps else 0.0
        losses = []
        for at, (tokens, weights) in enumerate(batches(demonstrator, rng, recipe, hasty)):
            half.zero_grad()
            loss = weighted_loss(half, tokens, weights)
            loss.backward()  # type: ignore[no-untyped-call]
            for master, part in zip(masters, copies, strict=True):
                master.grad = part.grad.float() if part.grad is not None else None
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizers.step(learning_rate_scale(start + at, recipe.steps))
            with torch.no_grad():
                torch._foreach_copy_(copies, masters)
            losses.append(loss.item())
        if start % (POOL * 16) == 0:
            _LOG.info("step %s of %s, loss %.3f", start, recipe.steps, sum(losses) / POOL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=MODEL_DIR)
    parser.add_argument("--tokenizer", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--full-share", type=float, default=0.6)
    parser.add_argument("--hasty", type=float, default=0.65)
    parser.add_argument("--renamed", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--muon-lr", type=float, default=0.03)
    parser.add_argument("--adamw-lr", type=float, default=6e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    options = vars(parser.parse_args())
    output, tokenizer = options.pop("output"), options.pop("tokenizer")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    recipe = Recipe(**options)
    model = new_model(tokenizer, recipe.seed)
    _LOG.info("%s parameters; %s", model.num_parameters(), recipe)
    start = time.monotonic()
    train(model, Demonstrator(tokenizer, recipe.seed), recipe)
    seconds = round(time.monotonic() - start)
    model.save_pretrained(output)
    GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=0).save_pretrained(output)
    record = {"recipe": recipe, "seconds": seconds, "torch": str(torch.__version__)}
    (output / "training.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    _LOG.info("%s s; model in %s", seconds, output)


if __name__ == "__main__":
    main()
