"""The page of `--dry-run`: sizes follow the design's formulas and the model's files."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.columns import COLUMNS
from agentrl.config.model import read_model
from agentrl.config.plan import capacity, describe
from agentrl.config.run import RunConfig


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "max_position_embeddings": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_size": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [10, 20], "data_offsets": [0, 800]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [800, 820]},
        }
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(820)
    )
    return tmp_path


def test_a_model_is_summed_up_from_its_headers(model_dir: Path) -> None:
    model = read_model(model_dir)
    assert model.num_parameters == 205
    assert model.kv_values_per_token == 2 * 3 * 2 * 32
    assert model.max_context == 1024


def test_without_weights_the_count_is_open(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    assert read_model(model_dir).num_parameters is None


def test_a_stored_token_takes_the_bytes_of_its_columns(model_dir: Path) -> None:
    config = RunConfig(hf_checkpoint=str(model_dir), rollout_batch_size=1, async_buffer_size=0)
    sizes = capacity(config, read_model(model_dir))
    per_token = sum(np.dtype(column.dtype).itemsize for column in COLUMNS.values())
    assert sizes.stored_bytes == 1024 * sizes.charged_episodes * per_token


def test_capacity_is_min_of_buffer_and_staleness_plus_interval_batches(model_dir: Path) -> None:
    config = RunConfig(
        hf_checkpoint=str(model_dir),
        rollout_batch_size=16,
        n_samples_per_prompt=8,
        async_buffer_size=4,
        max_staleness=2,
        update_weights_interval=3,
        sglang_server_concurrency=10,
        rollout_num_gpus=4,
        rollout_num_gpus_per_engine=2,
    )
    sizes = capacity(config, read_model(model_dir))
    assert sizes.charged_groups == (2 + 3) * 16
    assert sizes.charged_episodes == (2 + 3) * 16 * 8
    assert sizes.permits == 2 * 10
    assert sizes.kv_tokens == 10 * 1024


def test_the_page_shows_run_placement_capacity_and_memory(model_dir: Path) -> None:
    config = RunConfig(hf_checkpoint=str(model_dir), env="search-r1-local", max_staleness=1)
    page = describe(config)
    parts = ("rollout_batch_size = 32", "64 groups", "205 parameters", "S = 1", "permits")
    for part in (*parts, "learner   3.2 KiB of weights, gradients and optimizer on each rank"):
        assert part in page
    assert page.endswith("nothing was started (--dry-run)\n")


def test_the_page_shows_groups_of_ranks(model_dir: Path) -> None:
    config = RunConfig(
        hf_checkpoint=str(model_dir),
        env="x",
        rollout_num_gpus=8,
        rollout_num_gpus_per_engine=4,
        sglang={"dp_size": 2, "enable_dp_attention": True},
    )
    assert "2 SGLang of 4 devices in 2 groups of ranks behind 1 router" in describe(config)


def test_the_page_of_an_imitation_has_no_engines_and_no_ages(model_dir: Path) -> None:
    page = describe(RunConfig(hf_checkpoint=str(model_dir), loss_type="sft_loss"))
    assert "engines   none" in page
    for part in ("asynchrony:", "turns  ", "a turn samples", "KV cache", "weights at 16 bits"):
        assert part not in page


def test_on_a_cluster_that_was_not_asked_yet_a_rank_is_sized_for_either_device(
    model_dir: Path,
) -> None:
    def learner(**flags: Any) -> str:
        config = RunConfig(hf_checkpoint=str(model_dir), env="x", **flags)
        return next(line for line in describe(config).splitlines() if "learner   3" in line)

    # float32: 16 bytes each; bfloat16: 6, and 12 of the optimizer that 8 ranks share
    asked, either = learner(device="cpu"), learner()
    assert (205 * 16, round(205 * (6 + 12 / 8))) == (3280, 1538)
    assert asked.endswith("learner   3.2 KiB of weights, gradients and optimizer on each rank")
    assert either == f"{asked}; on GPUs 1.5 KiB"
