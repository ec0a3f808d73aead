"""A state that was saved goes on as if nothing had happened, in the same layout and in others."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_by_torch

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError
from agentrl.learner.checkpointing import CheckpointWriter, restore_newest
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone

DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
EXPERT = {"expert_model_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2}
TWICE = PIPELINE | {"num_virtual_stages_per_pipeline_rank": 2}
LAST = PIPELINE | {"decoder_last_pipeline_num_layers": 2}
CONTEXT = {"context_parallel_size": 2}
ODD = "qwen3-tied-odd"

Tensors = dict[str, Tensor]
Open = Callable[..., MegatronBackend]
Script = list[tuple[str, str]]


def config(ranks: int, megatron: dict[str, Any], **flags: Any) -> RunConfig:
    settings = {"lr": 1e-3, "weight_decay": 0.1, "clip_grad": 0.5, "lr_warmup_iters": 3} | flags
    return RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron, **settings)


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend; the one before is closed, as there can be only one."""
    backends: list[MegatronBackend] = []

    def make(megatron: dict[str, Any], model: str = "qwen3", **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                config(1, megatron, **flags),
                hf_model(model).directory,
                free_ports(1),
                num_training_steps=6,
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def weights(backend: MegatronBackend) -> Tensors:
    return {name: tensor.clone() for name, tensor in backend.hf_tensors()}


def wholes(directory: Path) -> Tensors:
    """Every whole tensor of a state, by torch's own loader."""
    reader = FileSystemReader(directory)
    stored: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    found = {
        key: torch.empty(facts.size, dtype=facts.properties.dtype) for key, facts in stored.items()
    }
    load_by_torch(dict(found), storage_reader=reader, no_dist=True)
    return found


def are_equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def apart(one: Tensors, other: Tensors) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# ---- one rank -----------------------------------------------------------------------------------


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
    first, second = (
        {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        for folder in (before, behind)
    )
    assert first == second


def test_saving_starts_no_process_and_leaves_no_file_open(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({})
    me = psutil.Process()
    before = set(me.children(recursive=True))
    follow_script(backend, [("save", str(tmp_path)), ("load", str(tmp_path))])
    assert set(me.children(recursive=True)) <= before
    assert [file.path for file in me.open_files() if Path(file.path).is_relative_to(tmp_path)] == []


# ---- several ranks -------------------------------------------------------------------------------

#: Name -> model, Megatron settings, script. In order: most load what the one before has saved.
TWO_RANKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dp2": (ODD, DISTRIBUTED, "step 0, step 1, save dp2, step 2, export dp2-after"),
    "dp2-again": (ODD, DISTRIBUTED, "load dp2, step 2, export dp2-again-after"),
    "behind": (
        ODD,
        DISTRIBUTED,
        "load dp2, replica dp2-replica, copy behind, step 2, write behind, export behind-after",
    ),
    "behind-again": (ODD, DISTRIBUTED, "load behind, step 2, export behind-again-after"),
    "tp2": (ODD, TENSOR, "load dp2, replica tp2-replica, save tp2, fail full"),
    "pp2": (
        ODD,
        PIPELINE | DISTRIBUTED,
        "load tp2, replica pp2-replica, save pp2, step 2, export pp2-after",
    ),
    "cp2": (
        ODD,
        CONTEXT | DISTRIBUTED,
        "load pp2, replica cp2-replica, save cp2, step 2, export cp2-after",
    ),
    "overlap": (ODD, OVERLAP, "load cp2, step 2, save overlap, export overlap-after"),
    "untied-pp2": ("qwen3", PIPELINE, "step 0, save untied-pp2, step 1, export untied-pp2-after"),
    "untied-dp2": (
        "qwen3",
        DISTRIBUTED,
        "load untied-pp2, save untied-dp2, step 1, export untied-dp2-after",
    ),
    "experts-ep2": (
        "qwen3-moe",
        EXPERT | DISTRIBUTED,
        "step 0, save experts-ep2, step 1, export experts-ep2-after",
    ),
    "experts-tp2": (
        "qwen3-moe",
        SEQUENCE,
        "load experts-ep2, save experts-tp2, step 1, export experts-tp2-after",
    ),
    "experts-tp2-ep2": (
        "qwen3-moe",
        SEQUENCE | EXPERT | DISTRIBUTED,
        "load experts-tp2, save experts-tp2-ep2, step 1, export experts-tp2-ep2-after",
    ),
    "uneven-pp2": (
        "qwen3-3layers",
        LAST | DISTRIBUTED,
        "step 0, save uneven-pp2, step 1, export uneven-pp2-after",
    ),
    "uneven-dp2": (
        "qwen3-3layers",
        DISTRIBUTED,
        "load uneven-pp2, save uneven-dp2, step 1, export uneven-dp2-after",
    ),
    "twice-pp2": (
        "qwen3-moe-4layers",
        TWICE | DISTRIBUTED,
        "step 0, save twice-pp2, step 1, export twice-pp2-after",
    ),
    "twice-ep2": (
        "qwen3-moe-4layers",
        EXPERT,
        "load twice-pp2, save twice-ep2, step 1, export twice-ep2-after",
    ),
    "twice-again": (
        "qwen3-moe-4layers",
        TWICE,
        "load twice-ep2, save twice-again, step 1, export twice-again-after",
    ),
    "prime-tp2": ("qwen3-prime", TENSOR, "step 0, save prime-tp2, step 1, export prime-tp2-after"),
    "prime-dp2": (
        "qwen3-prime",
        DISTRIBUTED | {"make_vocab_size_divisible_by": 32},
        "load prime-tp2, save prime-dp2, step 1, export prime-dp2-after",
    ),
}
FOUR_RANKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tp2-dp2": (
        ODD,
        TENSOR | {"sequence_parallel": True} | DISTRIBUTED,
        "load dp2, replica tp2-dp2-replica, save tp2-dp2, step 2, export tp2-dp2-after",
    )
}


@pytest.fixture(scope="module")
def home(hf_model: Any, run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all jobs left their states and exports."""
    home = tmp_path_factory.mktemp("states")

    def job(ranks: int, name: str, model: str, megatron: dict[str, Any], text: str) -> Any:
        script = [line.split(" ") for line in text.split(", ")]
        return {
            "config": msgspec.to_builtins(config(ranks, megatron)),
            "model_dir": str(hf_model(model).directory),
            "target": str(home / f"{name}-job"),
            "script": [
                (verb, argument if verb == "step" else str(home / argument))
                for verb, argument in script
            ],
        }

    for ranks, jobs in ((2, TWO_RANKS), (4, FOUR_RANKS)):
        run_ranks(home, ranks, [job(ranks, name, *what) for name, what in jobs.items()])
    return home


def exported(home: Path, name: str) -> Tensors:
    """Weights that all ranks exported alike."""
    first: Tensors = load_file(home / f"{name}-0")
    assert all(are_equal(first, load_file(path)) for path in home.glob(f"{name}-[123]"))
    return first


def test_two_ranks_go_on_bit_equal_in_the_layout_that_saved(home: Path) -> None:
    assert are_equal(exported(home, "dp2-again-after"), exported(home, "dp2-after"))


@pytest.mark.parametrize(
    ("layout", "speakers"),
    [
        ("dp2", [None, None]),
        *((layout, ["0", "0"]) for layout in ("tp2", "pp2", "cp2")),
        ("tp2-dp2", ["0", "0", "2", "2"]),
    ],
)
def test_ranks_of_a_replica_hear_the_first_of_them(
    layout: str, speakers: list[str | None], home: Path
) -> None:
    said = [json.loads((home / f"{layout}-replica-{r}").read_text()) for r in range(len(speakers))]
    assert said == speakers


def test_two_ranks_write_beside_a_step_what_they_had_before_it(home: Path) -> None:
    assert are_equal(wholes(home / "behind"), wholes(home / "dp2"))
    for rank in range(2):
        name = f"rng_{rank:05d}.msgpack"
        assert (home / "behind" / name).read_bytes() == (home / "dp2" / name).read_bytes()
    assert are_equal(exported(home, "behind-again-after"), exported(home, "dp2-after"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dp2", "tp2"),
        ("tp2", "pp2"),
        ("pp2", "cp2"),
        ("untied-pp2", "untied-dp2"),
        ("experts-ep2", "experts-tp2"),
        ("experts-tp2", "experts-tp2-ep2"),
        ("prime-tp2", "prime-dp2"),
        ("uneven-pp2", "uneven-dp2"),
        ("twice-pp2", "twice-ep2"),
        ("twice-ep2", "twice-again"),
        ("dp2", "tp2-dp2"),
    ],
)
def test_every_layout_holds_the_same_weights_and_moments(one: str, other: str, home: Path) -> None:
    found = wholes(home / one)
    assert are_equal(found, wholes(home / other))
    moments = [tensor for key, tensor in found.items() if key.startswith("optimizer.state.exp_avg")]
    assert len(moments) == 2 * (len(found) - len(moments))
    assert all(tensor.abs().max() > 0 for tensor in moments)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("pp2-after", "dp2-after"),
        ("cp2-after", "dp2-after"),
        ("overlap-after", "dp2-after"),
        ("tp2-dp2-after", "dp2-after"),
        ("untied-dp2-after", "untied-pp2-after"),
        ("experts-tp2-after", "experts-ep2-after"),
        ("experts-tp2-ep2-after", "experts-ep2-after"),
        ("uneven-dp2-after", "uneven-pp2-after"),
        ("twice-ep2-after", "twice-pp2-after"),
        ("twice-again-after", "twice-pp2-after"),
    ],
)
def test_every_layout_takes_the_same_next_step(after: str, wanted: str, home: Path) -> None:
    assert apart(exported(home, after), exported(home, wanted)) < 1e-5


@pytest.mark.parametrize("megatron", [{}, DISTRIBUTED], ids=["plain", "distributed"])
def test_one_rank_goes_on_from_two(
    megatron: dict[str, Any], home: Path, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened(megatron, ODD)
    torch.manual_seed(5)
    wanted = torch.rand(1, generator=torch.Generator().manual_seed(5))
    follow_script(backend, [("load", str(home / "dp2")), ("save", str(tmp_path))])
    assert torch.equal(torch.rand(1), wanted), "generators of another layout were taken over"
    assert are_equal(wholes(tmp_path), wholes(home / "dp2"))
    follow_script(backend, [("step", "2")])
    assert apart(weights(backend), exported(home, "dp2-after")) < 1e-5


@pytest.mark.parametrize("state", ["experts-ep2", "experts-tp2-ep2"])
def test_one_rank_goes_on_with_all_experts_of_two(
    state: str, home: Path, opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened({}, "qwen3-moe")
    follow_script(backend, [("load", str(home / state)), ("save", str(tmp_path)), ("step", "1")])
    assert are_equal(wholes(tmp_path), wholes(home / state))
    assert apart(weights(backend), exported(home, "experts-ep2-after")) < 1e-5


def test_what_other_ranks_still_gather_is_waited_for(
    home: Path, opened: Open, follow_script: Any
) -> None:
    backend = opened({}, ODD)
    follow_script(backend, [("load", str(home / "overlap"))])
    assert are_equal(weights(backend), exported(home, "overlap-after"))


@pytest.mark.parametrize("name", ["dp2", "tp2", "pp2", "overlap"])
def test_a_state_is_as_large_as_what_it_holds(name: str, home: Path) -> None:
    """Weights are views of large buffers, of which torch would save all."""
    held = sum(tensor.nbytes for tensor in wholes(home / name).values())
    num_chunks = (home / name / "index.json").read_text().count('"num_bytes"')
    on_disk = sum(path.stat().st_size for path in (home / name).glob("*.distcp"))
    assert held < on_disk < held + 2000 * num_chunks


def test_parameters_are_cut_within_a_row(home: Path) -> None:
    """Else the tests above would not see how torn rows are put together."""
    stored: dict[str, Any] = dict(
        FileSystemReader(home / "dp2").read_metadata().state_dict_metadata
    )
    chunks = [chunk for facts in stored.values() for chunk in facts.chunks]
    assert any(len(chunk.offsets) == 2 and chunk.offsets[1] > 0 for chunk in chunks)


def test_a_disk_that_fails_one_rank_fails_all_of_them(home: Path) -> None:
    said = [(home / f"full-{rank}").read_text() for rank in (0, 1)]
    assert "__1_0.distcp" in said[1]
    assert said[0] == f"learner rank 1: {said[1]}"


def test_closed_backends_do_not_pile_up_threads_of_their_groups(
    opened: Open, packed: Any, pg_loss: LossFn
) -> None:
    """Each wakes up a hundred times a second until the process ends. One group of sixteen or more
    stays, held by nothing of ours."""
    for _ in range(3):
        before = gloo_threads()
        backend = opened({})
        backend.step("policy", [packed([9, 5], 1)], pg_loss)
        opening = gloo_threads() - before
        backend.close()
        assert gloo_threads() - before < opening / 4


def gloo_threads() -> int:
    """Of this process."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum("gloo" in name for name in names)
