"""`agentrl convert`: its arguments, and those of slime's tools that do the same."""

import argparse
from pathlib import Path

from agentrl.config.first_weights import holds_model
from agentrl.errors import ConfigError
from agentrl.model_dir import decoder_config

__all__ = ["ABOUT", "add_arguments", "check_vocabulary", "convert"]

ABOUT = """\
Writes the weights at SOURCE to TARGET in the other form: those of a Hugging Face model in
Megatron's format (torch_dist), those of a checkpoint of Megatron's, of a run, or of one of a run's
checkpoints as a Hugging Face model. It needs no GPU, and the memory of a few of the largest
tensors. Any layout reads what any other has written, so nothing has to be converted to be
resharded.

    agentrl convert models/Qwen3-4B models/Qwen3-4B_torch_dist
    agentrl convert runs/ID models/trained --hf-checkpoint models/Qwen3-4B

exit codes:
  0    TARGET is written, durably
  2    the command line is wrong, or SOURCE is of another model
  65   SOURCE is damaged
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentrl convert`."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="Model or checkpoint to read")
    parser.add_argument("target", metavar="TARGET", type=Path, help="Folder to write")
    parser.add_argument(
        "--hf-checkpoint",
        metavar="DIR",
        type=Path,
        help="Hugging Face model directory with config.json and tokenizer; SOURCE where it is one",
    )
    parser.add_argument(
        "--to",
        choices=("hf", "torch_dist"),
        help="Form of TARGET [default: torch_dist for a Hugging Face model, else hf]",
    )
    parser.add_argument(
        "--model-family", metavar="FAMILY", help="Model family, as for train_async.py"
    )
    parser.add_argument(
        "--vocab-size",
        metavar="N",
        type=int,
        help="Rows without padding [default: as config.json says]",
    )
    parser.add_argument(
        "--chunk-size",
        metavar="BYTES",
        type=int,
        default=4 << 30,
        help="Most bytes of a file of a Hugging Face model [default: 4 GiB]",
    )
    parser.add_argument(
        "--mtp",
        action="store_true",
        help="With the layers of multi-token prediction of a Hugging Face model; without it they "
        "are left out of Megatron's format",
    )
    parser.add_argument("--force", action="store_true", help="Replace what is at TARGET")


def convert(arguments: argparse.Namespace) -> int:
    """`agentrl convert`."""
    source, is_model = arguments.source, holds_model(arguments.source)
    model_dir = arguments.hf_checkpoint or (source if is_model else None)
    if model_dir is None:
        raise ConfigError(
            f"--hf-checkpoint is missing: {source} is no Hugging Face model, and only one says "
            "what its tensors are"
        )
    named = "SOURCE" if arguments.hf_checkpoint is None else "--hf-checkpoint"
    check_vocabulary(model_dir, arguments.vocab_size, named)
    from agentrl.learner.megatron.convert import convert as convert_weights

    convert_weights(
        source,
        arguments.target,
        model_dir,
        arguments.to or ("torch_dist" if is_model else "hf"),
        family=arguments.model_family,
        is_forced=arguments.force,
        max_file_bytes=arguments.chunk_size,
        mtp="--mtp" if arguments.mtp else None,
    )
    return 0


def check_vocabulary(model_dir: Path, given: int | None, named: str = "--hf-checkpoint") -> None:
    """Refuse a size of the vocabulary that is not the model's: rows that pad it are not written."""
    size = decoder_config(model_dir, named).get("vocab_size")
    if given is not None and given != size:
        raise ConfigError(
            f"--vocab-size {given}: the config.json of {model_dir} says {size}, and so many rows "
            "are written"
        )
