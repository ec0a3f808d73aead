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
from agentrl.models.registry import families, open_model
from tests.parity.alone import open_alone
from tests.parity.layout_cases import (
    CASES,
    EXPERT,
    PIPELINE,
    SEQUENCE,
    SHARED,
    TENSOR,
    WITH_EXPERTS,
    WITH_WHOLE_EXPERTS,
    bound,
    family_of,
    layout_of,
)
from tests.parity.states import wholes
from tests.slices import of_the_day

Tensors = dict[str, Tensor]


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


def gradients(prefix: Path) -> Tensors:
    """A tenth of those of the first step of a job, clipped, by the names of weights."""
    moment = "optimizer.state.exp_avg."
    state = wholes(Path(f"{prefix}-first"))
    return {
        name.removeprefix(moment): each for name, each in state.items() if name.startswith(moment)
    }


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
def test_many_ranks_have_the_gradients_of_one_process_element_by_element(
    case: str, played: Callable[[str], Path], one_rank: Callable[[str], Path]
) -> None:
    """AdamW's first moments after one step are a tenth of the gradient, and a checkpoint has them
    whole, by names that every layout shares."""
    wanted = gradients(one_rank(CASES[case][1]))
    found = gradients(played(case))
    assert found.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert largest > 1e-4
    apart = {name: float((found[name] - wanted[name]).abs().max()) for name in wanted}
    assert {name: far for name, far in apart.items() if far >= 1e-5 * largest} == {}


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
