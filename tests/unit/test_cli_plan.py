"""`agentrl plan`, as a user meets it: which ranks, the page, the verdict, the exit code."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.cli.main import main
from agentrl.cli.plan import kinds_of_ranks, no_gpu_visible
from agentrl.cli.plan_page import Planned, page
from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.footprint import Collective, Footprint
from agentrl.models.registry import families, open_model

pytestmark = pytest.mark.slow

GIB = 1024**3
DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    return tmp_path


def footprint(stage: int, rank: int, activations: float = 10.0) -> Footprint:
    return Footprint(
        rank=rank,
        stage=stage,
        num_parameters=1000,
        moment="pass",
        weights=4 * GIB,
        gradients=8 * GIB,
        optimizer=6 * GIB,
        beside=0,
        activations=int(activations * GIB),
        logits=GIB,
        collectives=(Collective("allgather", "data", 4, 2, 8 * GIB),),
    )


def planned(model_dir: Path, *ranks: Footprint, gpu_gib: float = 80, **flags: Any) -> Planned:
    megatron = {"pipeline_model_parallel_size": len(ranks)}
    config = RunConfig(
        hf_checkpoint=str(model_dir),
        actor_num_gpus_per_node=8,
        rollout_num_gpus=8,
        megatron=megatron,
        **flags,
    )
    return Planned(
        config=for_device(config, "cuda"),
        model=open_model(model_dir, None),
        ranks=ranks,
        gpu_gib=gpu_gib,
        reserve_gib=6,
        link_gbps=400,
    )


@pytest.mark.parametrize(
    ("layers", "stages", "ranks"),
    [
        ([8], 1, [0]),
        ([4, 4], 2, [0, 8]),
        ([2, 2, 2, 2], 4, [0, 4, 12]),
        ([1, 2, 4, 1], 4, [0, 8, 12]),
        ([1] * 8, 4, [0, 4, 12]),
    ],
)
def test_of_each_kind_of_stage_the_fullest_is_rehearsed(
    layers: list[int], stages: int, ranks: list[int]
) -> None:
    assert kinds_of_ranks(layers, stages, 16) == ranks


def test_the_page_names_stages_and_what_each_has_left(model_dir: Path) -> None:
    first, last = footprint(0, 0), footprint(1, 4, activations=5.0)
    lines = list(page(planned(model_dir, first, last)))
    rows = [line.split() for line in lines if line.startswith(("first stage", "last stage"))]
    assert [row[2] for row in rows] == ["(0)", "(4)"]
    assert [row[-4:] for row in rows] == [
        ["29.0", "GiB", "45.0", "GiB"],
        ["24.0", "GiB", "50.0", "GiB"],
    ]
    assert any(line.startswith("fits: rank 0 has 45.0 GiB left") for line in lines)


def test_a_rank_that_lacks_memory_is_told_how_much_and_what_to_change(model_dir: Path) -> None:
    full = planned(model_dir, footprint(0, 0), gpu_gib=30)
    assert not full.fits
    lines = list(page(full))
    assert "does not fit: rank 0 lacks 5.0 GiB" in lines
    assert any(line.startswith("to change: give --recompute-granularity full") for line in lines)


def test_an_engine_without_room_for_a_cache_does_not_fit(model_dir: Path) -> None:
    config = planned(model_dir, footprint(0, 0), sglang={"mem_fraction_static": 0.0000001})
    assert not config.fits
    assert any("engines have no room for a key-value cache" in line for line in page(config))


def test_a_collective_is_timed_by_what_a_ring_sends(model_dir: Path) -> None:
    lines = list(page(planned(model_dir, footprint(0, 0))))
    (line,) = [line for line in lines if line.startswith("  allgather")]
    # 3/4 of 8 GiB at 50 GB a second
    assert "sends     6.0 GiB in 128.8 ms" in line


@pytest.mark.parametrize(("ranks", "heads"), [(1, 2), (2, 1), (8, 1)])
def test_a_gpu_of_an_engine_keeps_a_head_of_keys_at_the_least(
    model_dir: Path, ranks: int, heads: int
) -> None:
    found = planned(model_dir, footprint(0, 0), rollout_num_gpus_per_engine=ranks)
    assert found.kv_values == 8 * 2 * heads * 16


def test_a_group_of_data_parallel_attention_has_its_share_of_an_engines_gpus(
    model_dir: Path,
) -> None:
    sglang = {"enable_dp_attention": True, "dp_size": 2}
    found = planned(model_dir, footprint(0, 0), rollout_num_gpus_per_engine=2, sglang=sglang)
    assert found.kv_values == 8 * 2 * 2 * 16
    lines = list(page(found))
    assert any("tokens in each of 2 attention groups of an engine" in line for line in lines)
    assert any("those of one group of data-parallel attention" in line for line in lines)


def test_engines_that_others_started_are_not_judged(model_dir: Path) -> None:
    found = planned(
        model_dir,
        footprint(0, 0),
        sglang={"mem_fraction_static": 0.0000001},
        rollout_external_engine_addrs=["10.0.0.1:30000"],
    )
    assert found.fits
    assert not any(line.startswith("engines") for line in page(found))


def test_engines_of_evaluations_are_named(model_dir: Path) -> None:
    apart: dict[str, Any] = {"eval_interval": 5, "eval_mode": "apart", "eval_num_engines": 2}
    lines = list(page(planned(model_dir, footprint(0, 0), **apart)))
    assert any("2 of 1 GPUs for evaluations (--eval-mode apart)" in line for line in lines)


def test_frozen_parameters_are_told_as_counted(model_dir: Path) -> None:
    frozen = planned(model_dir, footprint(0, 0), freeze_params_name_list=["embedding"])
    assert any(line.startswith("  frozen parameters: counted as trained") for line in page(frozen))


@pytest.mark.parametrize("flag", ["--no-offload-train", "--no-offload-rollout"])
def test_memory_that_both_hold_at_once_is_refused(
    flag: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "--hf-checkpoint", str(model_dir), "--colocate", flag]
    assert main(argv) == 2
    assert f"--colocate {flag}: learner and engines" in capsys.readouterr().err


@pytest.mark.parametrize("before", ["0,1", None])
def test_gpus_are_hidden_for_the_time_of_a_rehearsal(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with no_gpu_visible():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_a_layout_that_a_model_cannot_have_is_refused(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "--hf-checkpoint", str(model_dir), "--tensor-model-parallel-size", "3"]
    assert main([*argv, "--actor-num-gpus-per-node", "3"]) == 2
    assert "4 attention heads cannot be divided" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("imbalance", "said"),
    [
        (1.0, "experts: each gets the same number"),
        (1.5, "experts: those of the planned ranks get 1.5"),
    ],
)
def test_the_page_says_which_load_of_experts_it_is_for(
    imbalance: float, said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(families()["qwen3-moe"].tiny)))
    found = replace(planned(tmp_path, footprint(0, 0)), moe_imbalance=imbalance)
    assert said in "\n".join(page(found))


def test_an_imbalance_that_the_model_cannot_have_is_refused(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "--hf-checkpoint", str(model_dir), "--moe-imbalance"]
    assert main([*argv, "1.5"]) == 2
    assert "--moe-imbalance 1.5: the model has no experts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*argv, "0.5"])
    assert "'0.5' is below 1, an even share" in capsys.readouterr().err


@pytest.mark.real
def test_a_run_of_many_ranks_is_planned_in_one_process(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]
    argv = ["plan", "--hf-checkpoint", str(model_dir), *layout, "--max-tokens-per-gpu", "512"]
    nodes = ["--actor-num-nodes", "8", "--actor-num-gpus-per-node", "8", "--rollout-num-gpus", "8"]
    assert main([*argv, *nodes]) == 0
    said = capsys.readouterr().out
    assert "64 ranks on cuda: tensor 2 x pipeline 2 x context 1, 16 replicas, bfloat16" in said
    assert "first stage (0)" in said
    assert "last stage (32)" in said
    assert "reduce_scatter data        16 ranks" in said
    assert "fits: rank" in said
