"""A state that was saved goes on as if nothing had happened, in the same layout and in others."""

import filecmp
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from agentrl.errors import AgentRLError, ConfigError
from agentrl.learner.checkpointing import CheckpointWriter, restore_newest
from tests.parity.states import DISTRIBUTED, Open, Script, apart, are_equal, weights, wholes


@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    "megatron",
    [{}, DISTRIBUTED, {"bf16": True}, {"bf16": True} | DISTRIBUTED],
    ids=["plain", "distributed", "bf16", "bf16-distributed"],
)
def test_steps_after_loading_equal_steps_never_interrupted(
    megatron: dict[str, Any],
    schedule: str,
    num_steps: int,
    opened: Open,
    follow_script: Any,
    tmp_path: Path,
) -> None:
    before: Script = [("step", str(number)) for number in range(num_steps)]
    after: Script = [("step", str(number)) for number in range(num_steps, num_steps + 2)]
    backend = opened(megatron, lr_decay_style=schedule)
    follow_script(backend, [*before, ("save", str(tmp_path))])
    saved = weights(backend)
    follow_script(backend, after)
    wanted = weights(backend)

    again = opened(megatron, lr_decay_style=schedule)
    follow_script(again, [("load", str(tmp_path))])
    assert are_equal(weights(again), saved)
    follow_script(again, after)
    assert are_equal(weights(again), wanted)
    assert not are_equal(saved, wanted)


@pytest.mark.parametrize(
    ("writes", "reads"), [({}, DISTRIBUTED), (DISTRIBUTED, {})], ids=["to-distributed", "to-plain"]
)
@pytest.mark.parametrize("bf16", [False, True])
def test_what_one_optimizer_writes_the_other_reads(
    writes: dict[str, Any],
    reads: dict[str, Any],
    bf16: bool,
    opened: Open,
    follow_script: Any,
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    backend = opened(writes | {"bf16": bf16})
    follow_script(backend, [("step", "0"), ("step", "1"), ("save", str(first)), ("step", "2")])
    wanted = weights(backend)
    again = opened(reads | {"bf16": bf16})
    follow_script(again, [("load", str(first)), ("save", str(second)), ("step", "2")])
    assert are_equal(wholes(first), wholes(second))
    assert apart(weights(again), wanted) < 1e-5


def test_random_generators_go_on_where_they_were(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    def draw() -> list[float]:
        return [
            random.random(),
            random.gauss(),
            float(np.random.random()),
            float(np.random.normal()),
            float(torch.rand(1)),
        ]

    backend = opened({})
    draw()
    follow_script(backend, [("save", str(tmp_path))])
    wanted = draw()
    follow_script(opened({}), [("load", str(tmp_path))])
    assert draw() == wanted


def test_a_state_of_another_model_or_type_is_refused_and_nothing_changes(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    follow_script(opened({}), [("step", "0"), ("save", str(tmp_path))])
    for model, megatron, words in (
        ("qwen2-wide", {}, r"lacks decoder\.layers\.0\.self_attention\.linear_qkv\.bias"),
        ("qwen3-tied", {}, r"has 3 tensors that .* such as optimizer.*\.output_layer\.weight"),
        ("qwen3", {"bf16": True}, r"in bfloat16, the checkpoint.*in float32"),
    ):
        other = opened(megatron, model)
        before = weights(other)
        with pytest.raises(ConfigError, match=words):
            other.load_state(tmp_path)
        assert are_equal(weights(other), before)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda shard: shard.unlink(), "__0_0.distcp"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-2000]), "__0_0.distcp: no tensor"),
        (lambda shard: (shard.parent / "index.json").write_text("{]"), "index.json is not an"),
        (lambda shard: (shard.parent / "progress.json").unlink(), "progress.json is missing"),
    ],
    ids=["missing", "truncated", "index", "progress"],
)
def test_a_damaged_state_is_refused_by_the_name_of_its_file(
    damage: Callable[[Path], object], words: str, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({})
    follow_script(backend, [("save", str(tmp_path))])
    damage(tmp_path / "__0_0.distcp")
    with pytest.raises(AgentRLError, match=words):
        backend.load_state(tmp_path)


def test_megatrons_own_loader_reads_the_weights(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({})
    follow_script(backend, [("step", "0"), ("save", str(tmp_path))])
    wanted = weights(backend)
    again = opened({})
    from megatron.core import dist_checkpointing

    content = dist_checkpointing.load_content_metadata(str(tmp_path))
    model: Any = again._trained["policy"].module[0]
    # Of layers that have no extra state it wants to read that none is there.
    found = dist_checkpointing.load(
        {"model": model.sharded_state_dict(metadata=content)}, str(tmp_path), strict="log_all"
    )
    model.load_state_dict(found["model"])
    assert not are_equal(wanted, load_file(again._model_dir / "model.safetensors"))
    assert are_equal(weights(again), wanted)


def test_a_damaged_checkpoint_falls_back_to_the_weights_before(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({})
    writer = CheckpointWriter(tmp_path, backend, run_id="run")
    writer.begin(None)
    follow_script(backend, [("step", "0")])
    writer.save(1, version=1)
    wanted = weights(backend)
    follow_script(backend, [("step", "1")])
    newest = writer.save(2, version=2)
    shard = newest.state / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    again = opened({})
    found = restore_newest(tmp_path, again)
    assert found is not None
    assert found.iteration == 1
    assert are_equal(weights(again), wanted)


@pytest.mark.parametrize("megatron", [{}, {"bf16": True} | DISTRIBUTED], ids=["plain", "bf16"])
def test_a_checkpoint_written_beside_steps_is_the_one_written_before_them(
    megatron: dict[str, Any], opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened(megatron)
    before, behind = str(tmp_path / "before"), str(tmp_path / "behind")
    script = [("step", "0"), ("save", before), ("copy", behind), ("step", "1"), ("write", behind)]
    follow_script(backend, script)
    wanted, found = sorted(Path(before).iterdir()), sorted(Path(behind).iterdir())
    assert [file.name for file in wanted] == [file.name for file in found]
    for one, other in zip(wanted, found, strict=True):
        assert filecmp.cmp(one, other, shallow=False), one.name


def test_saving_starts_no_process_and_leaves_no_file_open(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({})
    me = psutil.Process()
    before = set(me.children(recursive=True))
    follow_script(backend, [("save", str(tmp_path)), ("load", str(tmp_path))])
    assert set(me.children(recursive=True)) <= before
    assert [file.path for file in me.open_files() if Path(file.path).is_relative_to(tmp_path)] == []
