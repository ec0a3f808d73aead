"""Two and four real processes over gloo do what one process does, in every layout."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families

pytestmark = pytest.mark.timeout(300)

TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
CONTEXT = {"context_parallel_size": 2}
DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}

#: Case -> ranks, model, Megatron settings.
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "dp2": (2, "qwen3", {}),
    "dp2-distributed-tied": (2, "qwen3-tied", DISTRIBUTED),
    "dp2-overlap": (2, "qwen3", OVERLAP),
    "tp2-sequence-tied": (2, "qwen3-tied", SEQUENCE),
    "pp2-tied": (2, "qwen3-tied", PIPELINE),
    "cp2": (2, "qwen3", CONTEXT),
    "tp2-sequence-pp2-tied": (4, "qwen3-tied", SEQUENCE | PIPELINE),
    "tp2-sequence-cp2": (4, "qwen3", SEQUENCE | CONTEXT | DISTRIBUTED),
    "dp2-pp2": (4, "qwen3", PIPELINE | DISTRIBUTED),
    **{f"tp2-{family}": (2, family, TENSOR) for family in families()},
    **{f"pp2-{family}": (2, family, PIPELINE) for family in families()},
}


def config(ranks: int, megatron: dict[str, Any]) -> RunConfig:
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        rollout_temperature=0.8,
        lr=1e-3,
        weight_decay=0.1,
        clip_grad=0.5,
        megatron=megatron,
    )


@pytest.fixture(scope="module")
def one_rank(
    hf_model: Any,
    tmp_path_factory: pytest.TempPathFactory,
    free_ports: Callable[[int], int],
    play_job: Callable[[Any, Path], None],
) -> Callable[[str], Path]:
    """What one process makes of a model; the prefix of its files."""
    home = tmp_path_factory.mktemp("one")

    def find(model: str) -> Path:
        if not (home / f"{model}-saved").exists():
            backend = MegatronBackend(
                config(1, {}),
                hf_model(model).directory,
                rank=0,
                world_size=1,
                master_address="127.0.0.1",
                master_port=free_ports(1),
                num_training_steps=None,
            )
            with closing(backend):
                play_job(backend, home / model)
        return home / model

    return find


@pytest.fixture(scope="module")
def played(
    hf_model: Any, run_ranks: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """What the ranks of a case make of its model. Cases of one size share their processes, whose
    start takes longer than the work."""
    home = tmp_path_factory.mktemp("ranks")

    def find(case: str) -> Path:
        size = CASES[case][0]
        if not (home / f"{case}-saved").exists():
            jobs = [
                {
                    "config": msgspec.to_builtins(config(size, megatron)),
                    "model_dir": str(hf_model(model).directory),
                    "target": str(home / name),
                }
                for name, (ranks, model, megatron) in CASES.items()
                if ranks == size
            ]
            run_ranks(home, size, jobs)
        return home / case

    return find


def seen(prefix: Path, rank: int) -> dict[str, Any]:
    found = json.loads(Path(f"{prefix}-{rank}.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("case", list(CASES))
def test_many_ranks_take_the_same_steps_as_one(
    case: str, played: Callable[[str], Path], one_rank: Callable[[str], Path], hf_model: Any
) -> None:
    ranks, model, _ = CASES[case]
    wanted = load_file(f"{one_rank(model)}-0.weights")
    one = seen(one_rank(model), 0)["results"]
    for rank in range(ranks):
        weights = load_file(f"{played(case)}-{rank}.weights")
        assert weights.keys() == wanted.keys()
        for name in wanted:
            assert float((weights[name] - wanted[name]).abs().max()) < 1e-4, name
        for mine, theirs in zip(seen(played(case), rank)["results"], one, strict=True):
            assert mine[0] is False
            assert mine[1] == pytest.approx(theirs[1], rel=1e-4)
            assert mine[2].keys() == theirs[2].keys()
            for name, measure in theirs[2].items():
                assert mine[2][name] == pytest.approx(measure, rel=1e-4, abs=1e-4), name
    before = load_file(hf_model(model).directory / "model.safetensors")
    assert max(float((wanted[name] - before[name]).abs().max()) for name in wanted) > 1e-3


@pytest.mark.parametrize("case", list(CASES))
def test_the_ranks_of_a_replica_see_the_logprobs_of_one_process(
    case: str, played: Callable[[str], Path], one_rank: Callable[[str], Path]
) -> None:
    ranks, model, _ = CASES[case]
    wanted = load_file(f"{one_rank(model)}-0.logprobs")
    covered: set[str] = set()
    for rank in range(ranks):
        found = load_file(f"{played(case)}-{rank}.logprobs")
        assert case.startswith("dp2") or found.keys() == wanted.keys()
        assert all(float((found[name] - wanted[name]).abs().max()) < 1e-4 for name in found)
        covered |= found.keys()
    assert covered == wanted.keys()


@pytest.mark.parametrize("case", list(CASES))
def test_all_ranks_agree_to_skip_a_step_that_one_of_them_cannot_take(
    case: str, played: Callable[[str], Path]
) -> None:
    assert all(seen(played(case), rank)["nan_skipped"] for rank in range(CASES[case][0]))


@pytest.mark.parametrize("case", list(CASES))
def test_small_facts_reach_the_ranks_they_should(case: str, played: Callable[[str], Path]) -> None:
    everyone = [seen(played(case), rank) for rank in range(CASES[case][0])]
    total = [3.0, 1.0] if case.startswith("dp2") else [1.0, 0.5]
    assert all(one["sum"] == total for one in everyone)
    assert all(bytes(one["bytes"]) == b"lease" for one in everyone)
    assert [one["is_source"] for one in everyone] == [True] + [False] * (len(everyone) - 1)


@pytest.mark.parametrize("case", list(CASES))
def test_every_layout_saves_what_it_exports(case: str, played: Callable[[str], Path]) -> None:
    saved = load_file(Path(f"{played(case)}-saved") / "model.safetensors")
    exported = load_file(f"{played(case)}-0.weights")
    assert saved.keys() == exported.keys()
    assert all(torch.equal(saved[name], exported[name]) for name in saved)
