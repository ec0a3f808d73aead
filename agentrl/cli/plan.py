"""`agentrl plan`: what a run takes of each rank's GPU, its links and its engines, before it is
started anywhere."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.output import say
from agentrl.cli.parser import Parser
from agentrl.config.command_line import read_flags
from agentrl.config.device_defaults import for_device
from agentrl.config.megatron import MegatronSettings
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from agentrl.config.stages import layers_of_stages
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.learner.footprint import Footprint
    from agentrl.models.registry import Model

__all__ = ["ABOUT", "add_arguments", "kinds_of_ranks", "no_gpu_visible", "plan"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"

ABOUT = """\
Says what a run takes, from its flags and the config.json of its model; no weights and no GPU are
needed. A rank of each kind (first, middle and last stage of the pipeline) takes a step with the
learner's own code on tensors without data, among as many ranks as the run has, which are not there
either. Printed are its bytes, the collectives of the step, the room of an engine for key-value
cache, what a push and a checkpoint move, and whether it fits; if not, which flag to change:

    agentrl plan --hf-checkpoint Qwen3-4B --actor-num-gpus-per-node 8 --gpu-memory-gib 80 \\
        --tensor-model-parallel-size 2 --sequence-parallel --max-tokens-per-gpu 9216

All other flags are those of train_async.py. Checked is what the layout asks of the model: whether a
run takes all flags, and whether their files are there and agree, is for its --dry-run to say. It
takes about a minute of one core for 40 layers.

exit codes:
  0    it fits
  1    a rank or an engine lacks memory
  2    the command line is wrong, the model has no such layout, or is not planned yet
"""


def add_arguments(parser: Parser) -> None:
    """The flags of the sub-command."""
    parser.add_argument(
        "--gpu-memory-gib",
        metavar="GIB",
        type=_above_0,
        default=80.0,
        help="Memory of a GPU (default: %(default)g)",
    )
    parser.add_argument(
        "--reserve-gib",
        metavar="GIB",
        type=_above_0,
        default=6.0,
        help="Memory of a GPU that is kept free for CUDA, NCCL, working memory of kernels, "
        "and gaps between tensors (default: %(default)g)",
    )
    parser.add_argument(
        "--link-gbps",
        metavar="GBITS",
        type=_above_0,
        default=400.0,
        help="10^9 bits a second that a GPU sends to others (default: %(default)g)",
    )
    parser.add_argument(
        "--moe-imbalance",
        metavar="X",
        type=_at_least_1,
        default=1.0,
        help="The experts of each planned rank get X times an even share of the tokens, X at least "
        "1 (default: %(default)g)",
    )
    parser.passes_on = "flags"


def _above_0(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return found


def _at_least_1(text: str) -> float:
    found = _above_0(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is below 1, an even share")
    return found


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    from agentrl.algorithms.load import load_algorithm
    from agentrl.cli.plan_page import Planned, page

    config, model = _described(arguments.flags)
    planned = Planned(
        config=config,
        model=model,
        ranks=tuple(_rehearsed(config, model, arguments.moe_imbalance)),
        gpu_gib=arguments.gpu_memory_gib,
        reserve_gib=arguments.reserve_gib,
        link_gbps=arguments.link_gbps,
        moe_imbalance=arguments.moe_imbalance,
        models=load_algorithm(config).needs.models,
    )
    say(line.rstrip() for line in page(planned))
    return 0 if planned.fits else 1


def _described(flags: list[str]) -> "tuple[RunConfig, Model]":
    """The run of `flags`, on GPUs unless it is told to be on the CPU, and its model. Raises
    ConfigError for what is no flag, for a layout that the model cannot have, and for models that
    cannot be rehearsed."""
    from agentrl.models.mtp import with_mtp
    from agentrl.models.registry import open_model
    from agentrl.models.shapes import is_complete

    has_device = any(word.partition("=")[0] == "--device" for word in flags)
    given = read_flags([*flags, *([] if has_device else ["--device", "cuda"])])
    config, _ = layered(given, "train_async")
    config = for_device(config, "cpu" if config.device == "cpu" else "cuda")
    if config.hf_checkpoint is None:
        raise ConfigError("--hf-checkpoint names the model, by a folder with its config.json")
    model = open_model(Path(str(config.hf_checkpoint)), config.model_family)
    model = with_mtp(model) if config.enable_mtp_training else model
    model.architecture.check(MegatronSettings.from_config(config))
    if not is_complete(model.family):
        raise ConfigError(
            f"--model-family {config.model_family}: the sizes of its tensors are known of families "
            "that ship alone, so it is not planned yet"
        )
    if config.plays_only:
        raise ConfigError("--debug-rollout-only: there is no learner to plan")
    if config.colocate and not (config.offload_train and config.offload_rollout):
        flag = "--no-offload-rollout" if config.offload_train else "--no-offload-train"
        raise ConfigError(
            f"--colocate {flag}: learner and engines then hold memory at once, which is not "
            "planned yet; leave it out to plan them as they take turns"
        )
    return config, model


def _rehearsed(config: RunConfig, model: "Model", imbalance: float) -> "list[Footprint]":
    """A footprint for each kind of rank. No GPU is touched, not even one that is there."""
    with no_gpu_visible():
        return _on_no_gpu(config, model, imbalance)


@contextmanager
def no_gpu_visible() -> Iterator[None]:
    """Hides those that Slurm, for one, has given this process; what it had said stands again."""
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def _on_no_gpu(config: RunConfig, model: "Model", imbalance: float) -> "list[Footprint]":
    from agentrl.learner.megatron import rehearse

    architecture, settings = model.architecture, MegatronSettings.from_config(config)
    longest = config.rollout_max_context_len or architecture.max_position_embeddings
    ranks = kinds_of_ranks(
        layers_of_stages(architecture.num_layers, settings),
        settings.pipeline_model_parallel_size,
        config.num_learner_ranks,
    )
    return [rehearse(config, architecture, rank, longest, imbalance) for rank in ranks]


def kinds_of_ranks(layers: list[int], stages: int, num_ranks: int) -> list[int]:
    """The first rank of the first and of the last stage, and that of the stage between them which
    keeps most: its layers, for as many micro-batches as come before the first one is back."""
    of_ranks = [sum(layers[stage::stages]) for stage in range(stages)]
    between = range(1, stages - 1)
    middle = max(between, key=lambda s: of_ranks[s] * (stages - s), default=0)
    return [s * (num_ranks // stages) for s in sorted({0, middle, stages - 1})]
