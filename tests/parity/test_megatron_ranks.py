"""Two and four real processes over gloo do what one process does, in every layout."""

import json
from collections.abc import Callable
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models import Architecture, Family
from agentrl.models.registry import describe_model, families, open_model
from tests.parity.alone import open_alone
from tests.slices import of_the_day

Tensors = dict[str, Tensor]


def tiny(family: Family) -> Architecture:
    return describe_model(dict(family.tiny), None, source="config.json").architecture


def has_experts(family: Family) -> bool:
    return any(map(tiny(family).has_experts, range(tiny(family).num_layers)))


TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
FIRST = PIPELINE | {"decoder_first_pipeline_num_layers": 2}
LAST = PIPELINE | {"decoder_last_pipeline_num_layers": 2}
EMBEDDING = PIPELINE | {"account_for_embedding_in_pipeline_split": True}
LOSS = PIPELINE | {"account_for_loss_in_pipeline_split": True}
STAGES = PIPELINE | {"pipeline_model_parallel_layout": "E|ttt,L"}
FOUR_STAGES = PIPELINE | {"pipeline_model_parallel_layout": "Et|t|t|L"}
FOUR = {"pipeline_model_parallel_size": 4}
#: Two stages on each rank of the pipeline.
TWICE = {"num_virtual_stages_per_pipeline_rank": 2}
ONE_LAYER = {"num_layers_per_virtual_pipeline_stage": 1}
CONTEXT = {"context_parallel_size": 2}
EXPERT = {"expert_model_parallel_size": 2}
CUT = SEQUENCE | EXPERT | {"expert_tensor_parallel_size": 2}
EXPERT4 = {"expert_model_parallel_size": 4}
#: Sizes whose product is the ranks of one replica.
SHARED = TENSOR | PIPELINE | CONTEXT
#: Families whose members have experts.
WITH_EXPERTS = [name for name, family in families().items() if has_experts(family)]
#: Those whose experts have biases, so that no tensor ranks cut them up.
WITH_WHOLE_EXPERTS = [name for name in WITH_EXPERTS if tiny(families()[name]).add_bias_linear]
WITH_DELTA_NETS = [name for name, f in families().items() if "linear_num_key_heads" in f.tiny]
DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}

#: Case -> ranks, model, Megatron settings.
OF_LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "dp2": (2, "qwen3", {}),
    "dp2-distributed-tied": (2, "qwen3-tied", DISTRIBUTED),
    "dp2-overlap": (2, "qwen3", OVERLAP),
    "tp2-sequence-tied": (2, "qwen3-tied", SEQUENCE),
    "tp2-prime": (2, "qwen3-prime", TENSOR),
    "tp2-sequence-tied-prime": (
        2,
        "qwen3-tied-prime",
        SEQUENCE | {"make_vocab_size_divisible_by": 32},
    ),
    "dp2-glm4": (2, "glm4", {}),
    "dp2-distributed-deepseek-v3": (2, "deepseek-v3", DISTRIBUTED),
    "dp2-overlap-qwen3-moe": (2, "qwen3-moe", OVERLAP),
    "tp2-sequence-prime": (2, "llama-prime", SEQUENCE | {"make_vocab_size_divisible_by": 32}),
    "tp2-sequence-glm4": (2, "glm4", SEQUENCE),
    "pp2-tied": (2, "qwen3-tied", PIPELINE),
    "cp2": (2, "qwen3", CONTEXT | {"cp_comm_type": "all_gather"}),
    "cp2-window": (2, "mistral-window", CONTEXT),
    "cp2-glm4-moe": (2, "glm4-moe", CONTEXT),
    "cp2-deepseek-v3": (2, "deepseek-v3", CONTEXT),
    "tp2-sequence-pp2-glm4-moe": (4, "glm4-moe", SEQUENCE | PIPELINE),
    "tp2-sequence-cp2-glm4": (4, "glm4", SEQUENCE | CONTEXT),
    "dp2-pp2-deepseek-v3": (4, "deepseek-v3", PIPELINE),
    "tp2-sequence-pp2-tied": (4, "qwen3-tied", SEQUENCE | PIPELINE),
    "tp2-sequence-cp2": (4, "qwen3", SEQUENCE | CONTEXT | DISTRIBUTED),
    "tp2-told": (2, "qwen3-moe-told", SEQUENCE),
    "pp2-told": (2, "qwen3-moe-told", PIPELINE),
    "tp2-ep2-gpt-oss": (2, "gpt-oss", SEQUENCE | EXPERT),
    "cp2-told": (2, "qwen3-moe-told", CONTEXT),
    "ep2-told": (2, "qwen3-moe-told", EXPERT),
    "dp2-pp2": (4, "qwen3", PIPELINE | DISTRIBUTED),
}
#: The layouts that every family has to work in. A day plays some of them.
OF_FAMILIES: dict[str, tuple[int, str, dict[str, Any]]] = {
    **{
        f"tp2-{f}": (2, f, SEQUENCE if f in WITH_EXPERTS else TENSOR)
        for f in families()
        if f not in WITH_WHOLE_EXPERTS
    },
    **{f"pp2-{family}": (2, family, PIPELINE) for family in families()},
    **{f"ep2-{family}": (2, family, EXPERT) for family in WITH_EXPERTS},
    **{
        f"tp2-ep2-{family}": (2, family, SEQUENCE | EXPERT)
        for family in WITH_EXPERTS
        if family not in WITH_WHOLE_EXPERTS
    },
    "cp2-gpt-oss": (2, "gpt-oss", CONTEXT),
    **{f"cp2-{family}": (2, family, CONTEXT) for family in WITH_DELTA_NETS},
    "tp2-sequence-cp2-qwen3-next": (4, "qwen3-next-4keys", SEQUENCE | CONTEXT),
    "tp2-sequence-cp2-qwen3-5": (4, "qwen3-5-4keys", SEQUENCE | CONTEXT),
    "cp2-ep2-qwen3-next": (2, "qwen3-next", CONTEXT | EXPERT),
    "cp2-ep2-qwen3-moe": (2, "qwen3-moe", CONTEXT | EXPERT | DISTRIBUTED),
    "tp2-cp2-ep2-qwen3-5-moe": (4, "qwen3-5-moe-4keys", SEQUENCE | CONTEXT | EXPERT),
    "tp2-cp2-ep2-qwen3-next": (4, "qwen3-next-4keys", SEQUENCE | CONTEXT | EXPERT),
    "pp2-cp2-qwen3-5": (4, "qwen3-5", PIPELINE | CONTEXT),
    "pp2-cp2-qwen3-next": (4, "qwen3-next", PIPELINE | CONTEXT | DISTRIBUTED),
    "tp2-dp2-qwen3-moe": (4, "qwen3-moe", SEQUENCE | DISTRIBUTED),
    "tp2-ep4-qwen3-moe": (4, "qwen3-moe", SEQUENCE | EXPERT4 | DISTRIBUTED),
    "tp2-dp2-glm4-moe": (4, "glm4-moe", SEQUENCE),
    "tp2-ep4-deepseek-v3": (4, "deepseek-v3", SEQUENCE | EXPERT4),
    "pp2-ep2-minimax-m2": (4, "minimax-m2", PIPELINE | EXPERT),
    "pp2-ep2-gpt-oss": (4, "gpt-oss", PIPELINE | EXPERT),
    "tp2-ep4-gpt-oss": (4, "gpt-oss", SEQUENCE | EXPERT4 | DISTRIBUTED),
    "pp2-ep2-qwen3-moe": (4, "qwen3-moe", PIPELINE | EXPERT),
    # Experts that are shared out and cut as well.
    "tp2-ep2-etp2-qwen3-moe": (4, "qwen3-moe", CUT | DISTRIBUTED),
    "tp2-ep2-etp2-deepseek-v3": (4, "deepseek-v3", CUT),
    # Stages of different size; of 4, the first has the embedding alone.
    "pp2-first-tied": (2, "qwen3-tied-3layers", FIRST),
    "pp2-first-deepseek-v3": (2, "deepseek-v3-3layers", FIRST),
    "pp2-last-qwen3-moe": (2, "qwen3-moe-3layers", LAST),
    "pp2-last-glm4": (2, "glm4-3layers", LAST),
    "pp2-embedding": (2, "qwen3-3layers", EMBEDDING | DISTRIBUTED),
    "pp2-embedding-glm4-moe": (2, "glm4-moe-3layers", EMBEDDING),
    "pp2-loss-tied": (2, "qwen3-tied-3layers", LOSS),
    "pp2-loss-minimax-m2": (2, "minimax-m2-3layers", LOSS),
    "pp2-stages-tied": (2, "qwen3-tied-3layers", STAGES),
    "pp2-stages-deepseek-v3": (2, "deepseek-v3-3layers", STAGES),
    "tp2-pp2-first-glm4-moe": (4, "glm4-moe-3layers", SEQUENCE | FIRST),
    "tp2-pp2-first": (4, "qwen3-3layers", SEQUENCE | FIRST),
    "pp4-embedding-qwen3-moe": (4, "qwen3-moe-3layers", EMBEDDING | FOUR),
    "pp2-stages-ep2-glm4-moe": (4, "glm4-moe-3layers", STAGES | EXPERT),
    "pp4-embedding-tied": (4, "qwen3-tied-3layers", EMBEDDING | FOUR),
    "pp2-stages-ep2-qwen3-moe": (4, "qwen3-moe-3layers", STAGES | EXPERT | DISTRIBUTED),
    # Interleaved stages.
    "pp2-one-layer-tied": (2, "qwen3-tied-4layers", PIPELINE | ONE_LAYER),
    "pp2-one-layer-qwen3-moe": (2, "qwen3-moe-4layers", PIPELINE | ONE_LAYER | DISTRIBUTED),
    "pp2-twice-embedding-tied": (2, "qwen3-tied-3layers", EMBEDDING | TWICE | DISTRIBUTED),
    "pp2-twice-embedding-glm4-moe": (2, "glm4-moe-3layers", EMBEDDING | TWICE),
    "pp2-twice-first-deepseek-v3": (2, "deepseek-v3-6layers", FIRST | TWICE),
    "pp2-twice-first": (2, "qwen3-6layers", FIRST | TWICE),
    "pp2-four-stages-tied": (2, "qwen3-tied-3layers", FOUR_STAGES),
    "pp2-four-stages-minimax-m2": (2, "minimax-m2-3layers", FOUR_STAGES),
    "tp2-pp2-twice-glm4": (4, "glm4-4layers", SEQUENCE | PIPELINE | TWICE),
    "tp2-pp2-twice-qwen3-moe": (4, "qwen3-moe-4layers", SEQUENCE | PIPELINE | TWICE | DISTRIBUTED),
    "pp2-twice-ep2-glm4-moe": (4, "glm4-moe-4layers", PIPELINE | TWICE | EXPERT),
    "pp2-twice-ep2-told": (4, "qwen3-moe-4layers-told", PIPELINE | TWICE | EXPERT),
    "pp2-twice-cp2": (4, "qwen3-4layers", PIPELINE | TWICE | CONTEXT),
    "pp2-twice-cp2-deepseek-v3": (4, "deepseek-v3-4layers", PIPELINE | TWICE | CONTEXT),
    "pp4-twice-tied": (4, "qwen3-tied-8layers", FOUR | TWICE),
    "pp4-twice-qwen3-moe": (4, "qwen3-moe-8layers", FOUR | TWICE),
    "dp2-pp2-twice-overlap": (4, "qwen3-4layers", PIPELINE | TWICE | OVERLAP),
    "dp2-pp2-twice-overlap-qwen3-moe": (4, "qwen3-moe-4layers", PIPELINE | TWICE | OVERLAP),
}
CASES = OF_LAYOUTS | OF_FAMILIES
PLAYED = of_the_day(list(CASES), 12)


def config(ranks: int, model: str, megatron: dict[str, Any]) -> RunConfig:
    """Adam's epsilon is large beside the rounding of gradients that are zero by themselves (a
    constant that is added to all scores of a query changes no softmax, so the bias of keys without
    rotary positions has none): with 1e-8, steps would be made of that rounding."""
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        rollout_temperature=0.8,
        lr=1e-3,
        adam_eps=1e-6,
        weight_decay=0.1,
        clip_grad=0.5,
        use_rollout_routing_replay=model.endswith("-told"),
        megatron=megatron,
    )


def num_replicas(case: str) -> int:
    ranks, _, megatron = CASES[case]
    shared: list[int] = [megatron.get(name, 1) for name in SHARED]
    return ranks // prod(shared)


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
            backend = open_alone(config(1, model, {}), hf_model(model).directory, free_ports(1))
            with closing(backend):
                play_job(backend, home / model)
        return home / model

    return find


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest,
    hf_model: Any,
    run_ranks: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """What the ranks of a case make of its model. The session's cases of one size share their
    processes, whose start takes longer than the work."""
    home = tmp_path_factory.mktemp("ranks")
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    own = (item for item in items if item.path == request.path and hasattr(item, "callspec"))
    here = {item.callspec.params["case"] for item in own if "case" in item.callspec.params}

    def find(case: str) -> Path:
        size = CASES[case][0]
        if not (home / f"{case}-saved").exists():
            jobs = [
                {
                    "config": msgspec.to_builtins(config(size, model, megatron)),
                    "model_dir": str(hf_model(model).directory),
                    "target": str(home / name),
                }
                for name, (ranks, model, megatron) in CASES.items()
                if ranks == size and name in here
            ]
            run_ranks(home, size, jobs)
        return home / case

    return find


def seen(prefix: Path, rank: int) -> dict[str, Any]:
    found = json.loads(Path(f"{prefix}-{rank}.json").read_text())
    assert isinstance(found, dict)
    return found


def family_of(model: str) -> str:
    """The family of a model of a case, whose name may go on with a variant."""
    return max((name for name in families() if model.startswith(name)), key=len)


def layout_of(case: str) -> tuple[int, tuple[tuple[str, Any], ...]]:
    """Ranks and settings that share a model out; who keeps the optimizer's moments is none, nor is
    how context-parallel ranks speak, for which there is one way."""
    ranks, _, megatron = CASES[case]
    others = DISTRIBUTED.items() | {("cp_comm_type", "all_gather")}
    return ranks, tuple(sorted(megatron.items() - others))


def test_every_layout_is_compared_on_two_families() -> None:
    compared: dict[Any, set[str]] = {}
    for case, (_, model, _) in CASES.items():
        compared.setdefault(layout_of(case), set()).add(family_of(model))
    assert {layout: found for layout, found in compared.items() if len(found) < 2} == {}


@pytest.mark.parametrize("family", families())
def test_every_family_is_compared_on_tensor_pipeline_and_expert_ranks(family: str) -> None:
    compared = {layout_of(case) for case, (_, model, _) in CASES.items() if model == family}
    has = family in WITH_EXPERTS
    tensor = SEQUENCE if has else TENSOR
    if family in WITH_WHOLE_EXPERTS:
        tensor = tensor | EXPERT
    for settings in (tensor, PIPELINE, *([EXPERT] if has else [])):
        assert (2, tuple(sorted(settings.items()))) in compared


def bound(model: str) -> float:
    """How far apart ranks and one process may be. Some gradients of models with delta nets are so
    small that a step of AdamW makes much of their rounding (docs/lab.md)."""
    return 1e-4 if family_of(model) in WITH_DELTA_NETS else 1e-5


def farthest(one: Tensors, other: Tensors) -> float:
    """The greatest difference of a number; the files have the same tensors."""
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)


@pytest.mark.parametrize("case", PLAYED)
def test_many_ranks_take_the_same_steps_as_one(
    case: str,
    played: Callable[[str], Path],
    one_rank: Callable[[str], Path],
    hf_model: Any,
    record_property: Callable[[str, object], None],
) -> None:
    ranks, model, _ = CASES[case]
    wanted = load_file(f"{one_rank(model)}-0.weights")
    one = seen(one_rank(model), 0)["results"]
    worst, apart = 0.0, dict[str, float]()
    for rank in range(ranks):
        weights = load_file(f"{played(case)}-{rank}.weights")
        assert weights.keys() == wanted.keys()
        worst = max(worst, farthest(wanted, weights))
        for mine, theirs in zip(seen(played(case), rank)["results"], one, strict=True):
            assert mine[0] is False
            assert mine[2].keys() == theirs[2].keys()
            ours, one_s = ({**each[2], "gradient": [each[1]]} for each in (mine, theirs))
            for name, numbers in one_s.items():
                for found, number in zip(ours[name], numbers, strict=True):
                    distance = abs(found - number) / max(1, abs(number))
                    apart[name] = max(apart.get(name, 0.0), distance)
    record_property("weights", worst)
    assert {name: found for name, found in apart.items() if found >= bound(model)} == {}
    assert worst < bound(model)
    before = load_file(hf_model(model).directory / "model.safetensors")
    assert farthest(wanted, before) > 1e-3


@pytest.mark.parametrize("case", PLAYED)
def test_the_ranks_of_a_replica_see_the_logprobs_of_one_process(
    case: str,
    played: Callable[[str], Path],
    one_rank: Callable[[str], Path],
    record_property: Callable[[str, object], None],
) -> None:
    ranks, model, _ = CASES[case]
    wanted = load_file(f"{one_rank(model)}-0.logprobs")
    covered: set[str] = set()
    worst = 0.0
    for rank in range(ranks):
        found = load_file(f"{played(case)}-{rank}.logprobs")
        assert num_replicas(case) > 1 or found.keys() == wanted.keys()
        worst = max(worst, farthest(found, wanted))
        covered |= found.keys()
    record_property("logprobs", worst)
    assert worst < bound(model)
    assert covered == wanted.keys()


@pytest.mark.parametrize("case", PLAYED)
def test_all_ranks_agree_to_skip_a_step_that_one_of_them_cannot_take(
    case: str, played: Callable[[str], Path]
) -> None:
    assert all(seen(played(case), rank)["nan_skipped"] for rank in range(CASES[case][0]))


@pytest.mark.parametrize("case", PLAYED)
def test_small_facts_reach_the_ranks_they_should(case: str, played: Callable[[str], Path]) -> None:
    everyone = [seen(played(case), rank) for rank in range(CASES[case][0])]
    total = [3.0, 1.0] if num_replicas(case) == 2 else [1.0, 0.5]
    assert all(one["sum"] == total for one in everyone)
    assert all(one["ranks"] == [*range(len(everyone))] for one in everyone)
    assert all(bytes(one["bytes"]) == b"lease" for one in everyone)
    assert [one["is_source"] for one in everyone] == [True] + [False] * (len(everyone) - 1)


@pytest.mark.parametrize("case", PLAYED)
def test_every_layout_saves_what_it_exports_and_what_no_layer_has(
    case: str, played: Callable[[str], Path], hf_model: Any
) -> None:
    saved = load_file(Path(f"{played(case)}-saved") / "model.safetensors")
    exported = load_file(f"{played(case)}-0.weights")
    first = hf_model(CASES[case][1]).directory
    is_passenger = open_model(first, None).is_passenger
    before = load_file(first / "model.safetensors")
    wanted = exported | {name: before[name] for name in before if is_passenger(name)}
    assert saved.keys() == wanted.keys()
    assert all(torch.equal(saved[name], wanted[name]) for name in saved)


def test_a_rank_that_waits_for_another_gives_up_at_its_deadline(
    hf_model: Any, free_ports: Callable[[int], int]
) -> None:
    _, directory = hf_model("qwen3")
    with pytest.raises(EnvironmentSetupError, match=r"rank 0 of 2 .* within 0:00:00\.600000"):
        MegatronBackend(
            config(2, "qwen3", {"distributed_timeout_minutes": 0.01}),
            directory,
            rank=0,
            world_size=2,
            master_address="127.0.0.1",
            master_port=free_ports(1),
            num_training_steps=None,
        )
