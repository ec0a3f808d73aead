"""Checkpoints of plain megatron-core are read here, and ours there: the same weights, the same
logits. The other side is `plain_megatron.py`, a program with nothing of ours."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.cli.main import main
from agentrl.config.first_weights import brings_optimizer
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from tests.parity.alone import open_alone

pytestmark = pytest.mark.timeout(1800)

PLAIN = Path(__file__).with_name("plain_megatron.py")
Open = Callable[..., MegatronBackend]


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend; the one before is closed, as there can be only one."""
    backends: list[MegatronBackend] = []

    def make(model: str | Path = "qwen3", **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, **flags),
                model if isinstance(model, Path) else hf_model(model).directory,
                free_ports(1),
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture(scope="module")
def plain(hf_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Makes a checkpoint by plain megatron-core, each kind once."""
    made: dict[tuple[str, str], Path] = {}

    def make(model: str, kind: str) -> Path:
        if (model, kind) not in made:
            made[model, kind] = tmp_path_factory.mktemp(kind) / f"{model}_torch_dist"
            run_plain("save", made[model, kind], hf_model(model).directory, kind)
        return made[model, kind]

    return make


def run_plain(verb: str, folder: Path, model: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PLAIN), verb, str(folder), str(model / "config.json"), kind],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def left_by_plain(place: Path, what: str) -> Any:
    """What `plain_megatron.py` left beside a checkpoint: `weights` by name, or `logits`."""
    return torch.load(f"{place}.{what}", weights_only=True)


def assert_same(one: Path, other: Path) -> None:
    """Of two checkpoints that it wrote or read, the second one padded: to the last bit."""
    found, wanted = left_by_plain(one, "weights"), left_by_plain(other, "weights")
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, wanted[name][: len(tensor)]), name
    assert torch.equal(left_by_plain(one, "logits"), left_by_plain(other, "logits"))


def one_sequence() -> MicroBatch:
    """What `plain_megatron.py` computes the logits of."""
    tokens = torch.arange(24) * 7 % 96
    return MicroBatch(
        tokens_T=tokens,
        labels_T=tokens.roll(-1),
        positions_T=torch.arange(24),
        cu_seqlens=torch.tensor([0, 24], dtype=torch.int32),
        max_seqlen=24,
        columns={},
    )


def logprobs_of(logits: Tensor, batch: MicroBatch) -> Tensor:
    return logits.log_softmax(-1).gather(-1, batch.labels_T[:, None])[:, 0]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("qwen3", "layered"),
        ("qwen3-tied", "apart"),
        ("qwen2-wide", "layered-bf16"),
        ("qwen3-moe", "layered"),
        ("qwen3-moe", "apart"),
        ("qwen3-moe", "apart-te"),
        ("glm4-moe", "apart"),
        ("glm4-moe", "apart-te"),
        ("deepseek-v3", "apart"),
        ("deepseek-v3", "apart-te"),
    ],
)
def test_a_checkpoint_of_plain_megatron_begins_a_run_with_its_weights(
    model: str, kind: str, plain: Callable[[str, str], Path], opened: Open
) -> None:
    place = plain(model, kind)
    backend = opened(model, load=str(place))
    batch = one_sequence()
    (found,) = backend.run("policy", [batch])
    logits = torch.load(f"{place}.logits", weights_only=True)
    limit = 0.1 if kind.endswith("bf16") else 1e-5  # there they are computed in that type
    assert (found - logprobs_of(logits, batch)).abs().max() < limit
    theirs = torch.load(f"{place}.weights", weights_only=True)
    ours = dict(backend.hf_tensors())
    assert torch.equal(
        ours["model.embed_tokens.weight"], theirs["embedding.word_embeddings.weight"][:96].float()
    )
    has_experts = model in ("qwen3-moe", "glm4-moe", "deepseek-v3")
    here, there = ("experts.3.", "experts.local_experts.3.") if has_experts else ("", "")
    gate_and_up = torch.cat(
        [ours[f"model.layers.1.mlp.{here}{half}_proj.weight"] for half in ("gate", "up")]
    )
    assert torch.equal(
        gate_and_up, theirs[f"decoder.layers.1.mlp.{there}linear_fc1.weight"].float()
    )


def kept_of_ours(opened: Open, packed: Any, pg_loss: LossFn, folder: Path) -> MegatronBackend:
    """Trains a step and leaves the checkpoint of a run in `folder`."""
    backend = opened()
    backend.step("policy", [packed([30, 7], 1)], pg_loss)
    writer = CheckpointWriter(folder, backend, run_id="first")
    writer.begin(None)
    writer.save(1, version=1)
    return backend


@pytest.mark.parametrize("flag", [{"no_load_optim": True}, {"finetune": True}], ids="-".join)
def test_weights_alone_are_taken_without_the_optimizer(
    flag: dict[str, Any], opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    batch = [packed([30, 7], 1)]
    (trained,) = kept_of_ours(opened, packed, pg_loss, tmp_path).run("policy", batch)
    for megatron, is_left in ((flag, True), ({}, False)):
        cfg = RunConfig(load=str(tmp_path), megatron=megatron)
        assert brings_optimizer(cfg) is not is_left
        backend = opened(load=str(tmp_path), megatron=megatron)
        assert torch.equal(backend.run("policy", batch)[0], trained) is is_left
        assert backend._optimizer.completed_steps == 0


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_hidden_layers", 3, "num_layers 2 instead of 3"),
        ("hidden_size", 40, "hidden_size 32 instead of 40"),
        ("num_key_value_heads", 4, "num_query_groups 2 instead of 4"),
        ("rms_norm_eps", 1e-5, "norm_epsilon 1e-06 instead of 1e-05"),
        ("rope_theta", 7.0, "rotary_base 50000 instead of 7.0"),
        ("tie_word_embeddings", True, "untie_embeddings_and_output_weights True instead of False"),
        ("intermediate_size", 96, r"shape \(2, 128, 32\) in float32 there, and \(2, 192, 32\)"),
        ("num_attention_heads", 8, "shape .* in float32 there, and"),
        ("head_dim", 32, "shape .* in float32 there, and"),
        ("vocab_size", 200, r"shape \(128, 32\) in float32 there, and \(200, 32\)"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused_by_what_differs(
    field: str,
    value: Any,
    words: str,
    plain: Callable[[str, str], Path],
    make_hf_model: Any,
    opened: Open,
    tmp_path: Path,
) -> None:
    make_hf_model({**families()["qwen3"].tiny, field: value}, tmp_path)
    with pytest.raises(ConfigError, match=words):
        opened(tmp_path, load=str(plain("qwen3", "layered")))


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "glm4-moe", "deepseek-v3"])
def test_plain_megatron_reads_a_model_that_was_converted(
    name: str, hf_model: Any, tmp_path: Path
) -> None:
    model, directory = hf_model(name)
    assert main(["convert", str(directory), str(tmp_path / "dist")]) == 0
    run_plain("load", tmp_path / "dist", directory, "unpadded-te")
    theirs = torch.load(tmp_path / "dist.logits", weights_only=True)
    ours = model((torch.arange(24) * 7 % 96)[None]).logits[0]
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("model", ["glm4-moe", "deepseek-v3"])
def test_what_is_written_here_is_there_again_to_the_last_bit(
    model: str, plain: Callable[[str, str], Path], hf_model: Any, tmp_path: Path
) -> None:
    """From plain Megatron here and back, correction biases of routers included."""
    place, directory = plain(model, "apart"), hf_model(model).directory
    again, base = tmp_path / "again", ["--hf-checkpoint", str(directory), "--to", "torch_dist"]
    assert main(["convert", str(place), str(again), *base]) == 0
    run_plain("load", again, directory, "unpadded-te")
    assert any(name.endswith("expert_bias") for name in left_by_plain(place, "weights"))
    assert_same(again, place)


def test_what_plain_megatron_wrote_becomes_a_model(
    plain: Callable[[str, str], Path], hf_model: Any, opened: Open, tmp_path: Path
) -> None:
    place, directory = plain("qwen3", "layered"), hf_model("qwen3").directory
    again, back = tmp_path / "again", tmp_path / "hf"
    base = ["--hf-checkpoint", str(directory)]
    assert main(["convert", str(place), str(again), *base, "--to", "torch_dist"]) == 0
    assert main(["convert", str(again), str(back), *base]) == 0
    found = load_file(back / "model.safetensors")
    wanted = dict(opened(load=str(place)).hf_tensors())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())


def test_a_checkpoint_of_a_run_becomes_a_model(
    opened: Open, packed: Any, pg_loss: LossFn, hf_model: Any, tmp_path: Path
) -> None:
    backend = kept_of_ours(opened, packed, pg_loss, tmp_path / "kept")
    wanted = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    backend.close()
    (common,) = (tmp_path / "kept").rglob("common.pt")
    said = torch.load(common, weights_only=False)["args"]
    assert (said.num_layers, said.no_save_optim) == (2, True)
    words = ["convert", str(tmp_path / "kept"), str(tmp_path / "hf"), "--hf-checkpoint"]
    assert main([*words, str(hf_model("qwen3").directory)]) == 0
    found = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())


# ---- two ranks ----------------------------------------------------------------------------------

PIPELINE = {"pipeline_model_parallel_size": 2}
#: Name -> model and Megatron settings.
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tp2": ("qwen3", {"tensor_model_parallel_size": 2}),
    "pp2": ("qwen3", PIPELINE),
    "ep2": ("qwen3-moe", {"expert_model_parallel_size": 2}),
    "pp2-twice": ("qwen3-4layers", PIPELINE | {"num_virtual_stages_per_pipeline_rank": 2}),
}


@pytest.fixture(scope="module")
def home(
    hf_model: Any,
    plain: Callable[[str, str], Path],
    run_ranks: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Where two ranks left what they loaded from plain Megatron, in each layout."""
    home = tmp_path_factory.mktemp("layouts")
    jobs = [
        {
            "config": msgspec.to_builtins(
                RunConfig(
                    actor_num_gpus_per_node=2, megatron=layout, load=str(plain(model, "layered"))
                )
            ),
            "model_dir": str(hf_model(model).directory),
            "target": str(home / f"{name}-job"),
            "script": [("save", str(home / name)), ("export", str(home / f"{name}-weights"))],
        }
        for name, (model, layout) in LAYOUTS.items()
    ]
    run_ranks(home, 2, jobs)
    return home


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_takes_what_plain_megatron_wrote_and_gives_it_back(
    layout: str, home: Path, plain: Callable[[str, str], Path], hf_model: Any
) -> None:
    """The checkpoint of two ranks, read by plain megatron-core: padding apart, the same weights."""
    model, _ = LAYOUTS[layout]
    run_plain("load", home / layout, hf_model(model).directory, "unpadded-te")
    assert_same(home / layout, plain(model, "layered"))
