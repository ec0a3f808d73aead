"""A checkpoint in Megatron's format as a Hugging Face model, with the arguments of slime's tool of
that name.

    python scripts/convert_torch_dist_to_hf.py --input-dir DIR/iter_0000010 --output-dir DIR
        --origin-hf-dir MODEL

`agentrl convert` does the same. slime's tool also takes --model-name alone; here --origin-hf-dir is
needed, for its config.json says the shapes of tensors and the architecture.
"""

import argparse
import sys
from pathlib import Path

from agentrl.cli.convert import check_vocabulary
from agentrl.config.weights import read_shapes
from agentrl.errors import AgentRLError, ConfigError

NEEDS_ORIGIN = """\
--origin-hf-dir is missing: name the Hugging Face model that the checkpoint was made from. Its
config.json says the shapes of the tensors and the architecture, which --model-name does not, and
the tokenizer is taken from it"""
ADDED = """\
-a: tensors of layers that are not trained (eyes, multi-token prediction) are always taken from
--origin-hf-dir; a checkpoint that lacks any other tensor of the model is refused, not completed
"""


def main(argv: list[str]) -> int:
    """Convert; returns the exit code."""
    parser = argparse.ArgumentParser(description="a checkpoint of Megatron's as a model")
    parser.add_argument("--input-dir", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--origin-hf-dir", type=Path, help="model with config.json and tokenizer; needed"
    )
    parser.add_argument("--model-name", help="says nothing: config.json names the architecture")
    parser.add_argument("--vocab-size", type=int, help="rows without padding")
    parser.add_argument("--chunk-size", type=int, default=5 << 30, help="most bytes of a file")
    parser.add_argument("-f", "--force", action="store_true", help="replace what is there")
    parser.add_argument(
        "-a",
        "--add-missing-from-origin-hf",
        action="store_true",
        help="always so for layers that are not trained; a checkpoint that lacks any other tensor "
        "of the model is refused",
    )
    given = parser.parse_args(argv)
    if given.origin_hf_dir is None:
        raise ConfigError(NEEDS_ORIGIN)
    if given.add_missing_from_origin_hf:
        if not read_shapes(given.origin_hf_dir):
            raise ConfigError(f"-a: {given.origin_hf_dir} has no weights that could be added")
        sys.stderr.write(ADDED)
    check_vocabulary(given.origin_hf_dir, given.vocab_size)
    from agentrl.learner.megatron.convert import convert

    convert(
        given.input_dir,
        given.output_dir,
        given.origin_hf_dir,
        "hf",
        is_forced=given.force,
        max_file_bytes=given.chunk_size,
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AgentRLError as error:
        sys.stderr.write(f"convert_torch_dist_to_hf.py: {error}\n")
        sys.exit(error.exit_code)
