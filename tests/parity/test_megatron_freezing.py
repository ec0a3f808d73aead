"""Frozen parameters: a run with them equals one of plain torch with `requires_grad` False, on one
rank and on several, and what is frozen keeps its bits and costs no gradient and no moments."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config.freezing import name_of, trains
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend, placement
from agentrl.models.registry import open_model
from agentrl.models.shapes import parameters_of
from tests.parity.alone import open_alone

LR, DECAY, CLIP = 1e-3, 0.1, 0.5
ONLY, FREEZE = "only_train_params_name_list", "freeze_params_name_list"
Tensors = dict[str, Tensor]
Open = Callable[..., MegatronBackend]

DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["mlp", "layernorm"]}

#: Case -> model, list, what is trained of the Hugging Face model, Megatron settings.
CASES: dict[str, tuple[str, dict[str, list[str]], str, dict[str, Any]]] = {
    "all-but-ends": (
        "qwen3",
        {"freeze_params_name_list": ["embedding", "output_layer"]},
        r"layers|model\.norm",
        {},
    ),
    "one-layer": (
        "qwen3",
        {"only_train_params_name_list": [r"layers\.1\."]},
        r"layers\.1\.",
        DISTRIBUTED,
    ),
    "one-layer-recomputed": (
        "qwen3",
        {"only_train_params_name_list": [r"layers\.1\."]},
        r"layers\.1\.",
        FULL,
    ),
    "mlps-recomputed": (
        "qwen3-tied",
        {"only_train_params_name_list": ["mlp", "final"]},
        r"mlp|post_att|model\.norm",
        FULL,
    ),
    "mlps-selective": (
        "qwen3",
        {"only_train_params_name_list": [r"linear_fc\d"]},
        r"mlp|post_att",
        SELECTIVE,
    ),
    "tied-embedding": (
        "qwen3-tied",
        {"freeze_params_name_list": ["word_embeddings"]},
        r"layers|model\.norm",
        {},
    ),
    "head": ("qwen3", {"only_train_params_name_list": ["^output_layer"]}, "lm_head", DISTRIBUTED),
    "norms": ("llama", {"only_train_params_name_list": ["norm"]}, "norm", {}),
    "biases": ("qwen2", {"only_train_params_name_list": ["bias"]}, "bias", DISTRIBUTED),
    "biases-recomputed": ("qwen2", {"only_train_params_name_list": ["bias"]}, "bias", FULL),
    "experts": ("qwen3-moe", {"only_train_params_name_list": ["experts"]}, r"experts\.", {}),
    "one-expert": (
        "qwen3-moe",
        {"only_train_params_name_list": [r"experts\..*weight1$"]},
        r"experts\.(?=1|gate_up|down)",
        DISTRIBUTED,
    ),
    "router": ("qwen3-moe", {"freeze_params_name_list": ["router"]}, r"^(?!.*mlp\.gate\.)", {}),
}


def config(ranks: int, megatron: dict[str, Any], **flags: Any) -> RunConfig:
    settings = {"lr": LR, "weight_decay": DECAY, "clip_grad": CLIP, "adam_eps": 1e-6} | flags
    return RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron, **settings)


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a backend of one rank; the one before is closed."""
    backends: list[MegatronBackend] = []

    def make(model: str, megatron: dict[str, Any] | None = None, **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        models = ("critic",) if flags.get("advantage_estimator") == "ppo" else ()
        directory = hf_model(model).directory
        cfg = config(1, megatron or {}, **flags)
        backends.append(open_alone(cfg, directory, free_ports(1), models=models))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def torch_steps(
    model: Any,
    steps: list[list[MicroBatch]],
    loss_fn: LossFn,
    hf_scores: Any,
    trained: str,
    expert: int | None,
) -> tuple[Tensors, list[float]]:
    """Weights and gradient norms of AdamW on a copy of a transformers model, of whose parameters
    those that `trained` is in require gradients. It has the experts of a layer in one parameter, of
    which the `expert` alone is trained."""
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(re.search(trained, name)))
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.dim() > 1]},
        {"params": [p for p in own if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=DECAY, eps=1e-6)
    norms = []
    for batches in steps:
        optimizer.zero_grad()
        for batch in batches:
            value, _ = loss_fn(batch, Outputs(*hf_scores(model, batch)))
            torch.autograd.backward(value)
        frozen = [] if expert is None else [(p, torch.arange(len(p)) != expert) for p in own]
        kept = [parameter.detach()[rest].clone() for parameter, rest in frozen]
        for parameter, rest in frozen:
            assert parameter.grad is not None
            parameter.grad[rest] = 0.0
        norms.append(float(torch.nn.utils.clip_grad_norm_(own, CLIP)))
        optimizer.step()
        for (parameter, rest), before in zip(frozen, kept, strict=True):
            parameter.data[rest] = before
    return {name: parameter.detach() for name, parameter in model.named_parameters()}, norms


def moved(one: Tensors, other: Tensors) -> set[str]:
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("case", CASES)
def test_a_frozen_run_equals_torch_without_those_gradients(
    case: str, hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, opened: Open
) -> None:
    name, lists, trained, megatron = CASES[case]
    model, _ = hf_model(name)
    steps = [[packed([30, 7], 1), packed([19], 2)], [packed([11, 23], 3)]]
    expert = 1 if case == "one-expert" else None
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores, trained, expert)
    backend = opened(name, megatron, **lists)
    before = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    found = [backend.step("policy", batches, pg_loss).grad_norm for batches in steps]
    assert found == pytest.approx(norms, rel=1e-4)
    after = dict(backend.hf_tensors())
    named = {name: wanted[name] for name in after if name in wanted}
    assert max(float((after[name] - named[name]).abs().max()) for name in named) < 1e-4
    assert moved(before, after) <= {name for name in after if re.search(trained, name)}
    # An expert that no token went to has a gradient of zero, and decays.
    assert moved(before, after)


@pytest.mark.parametrize("megatron", [{}, DISTRIBUTED, {"bf16": True} | DISTRIBUTED])
def test_what_is_frozen_has_neither_a_gradient_nor_moments(
    megatron: dict[str, Any], packed: Any, pg_loss: LossFn, opened: Open
) -> None:
    backend = opened("qwen3", megatron, **{FREEZE: ["embedding", "linear_qkv"]})
    backend.step("policy", [packed([30, 7], 1)], pg_loss)
    cfg = config(1, {}, **{FREEZE: ["embedding", "linear_qkv"]})
    parts = placement.parts(backend._trained["policy"].module)
    frozen = [p for p, made in parts.items() if not trains(cfg, name_of(made[0].key))]
    assert len(frozen) == 1 + 2 * 2  # the embedding, and of each layer a projection and its norm
    assert not any(hasattr(parameter, "main_grad") for parameter in frozen)
    assert all(parameter.grad is None for parameter in frozen)
    held = {held.parameter for held in backend._optimizer.held()}
    assert held == set(parts) - set(frozen)


@pytest.mark.parametrize("megatron", [{}, DISTRIBUTED], ids=["plain", "distributed"])
def test_a_frozen_run_that_goes_on_takes_the_steps_that_it_would_have_taken(
    megatron: dict[str, Any], opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    flags = {ONLY: ["experts", "router"]}
    backend = opened("qwen3-moe", megatron, **flags)
    follow_script(backend, [("step", "0"), ("save", str(tmp_path)), ("step", "1")])
    wanted = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    again = opened("qwen3-moe", megatron, **flags)
    follow_script(again, [("load", str(tmp_path)), ("step", "1")])
    assert moved(wanted, dict(again.hf_tensors())) == set()


def test_a_run_that_begins_with_another_ones_state_needs_moments_of_all_that_it_trains(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    """Which it lacks of what was frozen there; those of what is frozen here are left."""
    whole, frozen = tmp_path / "whole", tmp_path / "frozen"
    follow_script(opened("qwen3", run_id="a"), [("step", "0"), ("save", str(whole))])
    backend = opened("qwen3", run_id="b", **{FREEZE: ["mlp"]})
    follow_script(backend, [("load", str(whole)), ("step", "1"), ("save", str(frozen))])
    with pytest.raises(ConfigError, match=r"no optimizer state of 6 .*mlp.*--no-load-optim"):
        opened("qwen3", run_id="c").load_state(frozen)


def test_a_run_that_trained_one_expert_is_saved_and_goes_on(
    opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    """Experts of a layer are one tensor in a checkpoint, of whose moments a part is nowhere."""
    saved, trains = tmp_path / "saved", {ONLY: [r"experts\..*weight1$"]}
    backend = opened("qwen3-moe", run_id="a", **trains)
    follow_script(backend, [("step", "0"), ("save", str(saved)), ("step", "1")])
    wanted = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    again = opened("qwen3-moe", run_id="a", **trains)
    follow_script(again, [("load", str(saved)), ("step", "1")])
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.hf_tensors())
    with pytest.raises(ConfigError, match=r"no optimizer state of \d+ .*experts.*--no-load-optim"):
        opened("qwen3-moe", run_id="c", **{ONLY: ["experts"]}).load_state(saved)


def test_a_critic_goes_by_the_same_names_and_always_trains_its_head(
    opened: Open, follow_script: Any
) -> None:
    backend = opened("qwen3", advantage_estimator="ppo", **{FREEZE: ["output_layer", r"layers\.0"]})
    critic = backend._trained["critic"]
    before = {name: p.detach().clone() for name, p in critic.module.named_parameters()}
    follow_script(backend, [("learn", "0"), ("learn", "1")])
    changed = {n for n, p in critic.module.named_parameters() if not torch.equal(p, before[n])}
    assert {"0.output_layer.weight", "0.output_layer.bias"} <= changed
    assert any("layers.1." in name for name in changed)
    assert not any("layers.0." in name for name in changed)


@pytest.mark.parametrize(
    ("flag", "expressions", "words"),
    [
        (
            FREEZE,
            ["embedding", "linear_qvk"],
            r"'linear_qvk' is in no .*\n?.*layers\.\d.*linear_qkv",
        ),
        (ONLY, [r"layers\.[89]\."], r"Qwen3ForCausalLM \(layers 0 to 1\)"),
        (FREEZE, ["."], r"leaves none of 19 parameters .*--eval-only"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_before_any_step(
    flag: str, expressions: list[str], words: str, opened: Open
) -> None:
    with pytest.raises(ConfigError, match=words):
        opened("qwen3", **{flag: expressions})


@pytest.mark.parametrize(
    "model", ["qwen3", "qwen3-tied", "qwen3-moe", "deepseek-v3", "glm4-moe", "gpt-oss"]
)
def test_names_that_a_dry_run_judges_by_are_those_of_the_learner(
    model: str, hf_model: Any, opened: Open
) -> None:
    described = open_model(hf_model(model).directory, None)
    module = opened(model)._trained["policy"].module
    found = {}
    for parameter, made_of in placement.parts(module).items():
        if isinstance(parameter, torch.nn.Parameter):
            part = made_of[0]
            experts = part.prepend_axis_num
            key = ".".join([part.key, *map(str, part.global_offset[:experts])])
            found[name_of(key)] = tuple(part.global_shape[experts:])
    assert found == parameters_of(described)


# ---- several ranks ------------------------------------------------------------------------------

TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
EXPERT = {"expert_model_parallel_size": 2}
TWICE = PIPELINE | {"num_virtual_stages_per_pipeline_rank": 2}
#: Case -> model, list, expressions, Megatron settings of two ranks.
RANKS: dict[str, tuple[str, str, list[str], dict[str, Any]]] = {
    "dp2-one-layer": ("qwen3", ONLY, [r"layers\.1\."], DISTRIBUTED),
    "dp2-overlap": ("qwen3", FREEZE, ["embedding", "mlp"], OVERLAP),
    "tp2": ("qwen3", FREEZE, ["embedding", "linear_proj"], TENSOR),
    "tp2-tied-recomputed": ("qwen3-tied", FREEZE, ["embedding"], TENSOR | FULL),
    "tp2-biases": ("qwen2", ONLY, ["bias"], TENSOR),
    # All of the first stage is frozen, or all of the last.
    "pp2-last": ("qwen3", ONLY, [r"layers\.1\.", "output_layer"], PIPELINE),
    "pp2-first": ("qwen3", ONLY, [r"layers\.0\."], PIPELINE | DISTRIBUTED),
    "pp2-tied": ("qwen3-tied", FREEZE, ["embedding"], PIPELINE),
    "pp2-tied-trained": ("qwen3-tied", ONLY, ["embedding"], PIPELINE),
    "pp2-twice": ("qwen3-4layers", ONLY, [r"layers\.[12]\."], TWICE),
    # One of two ranks trains experts, and nothing else is trained.
    "ep2-one-expert": ("qwen3-moe", ONLY, [r"experts\..*weight0$"], EXPERT),
    "ep2-one-expert-distributed": (
        "qwen3-moe",
        ONLY,
        [r"experts\..*weight0$", "router"],
        EXPERT | DISTRIBUTED,
    ),
    "pp2-experts": ("qwen3-moe", ONLY, [r"layers\.0.*experts"], PIPELINE),
}


@pytest.fixture(scope="module")
def played(
    hf_model: Any,
    run_ranks: Any,
    play_job: Any,
    free_ports: Callable[[int], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The files of all cases, of one rank (`CASE-one`) and of two."""
    home = tmp_path_factory.mktemp("freezing")
    jobs = []
    for case, (model, flag, expressions, megatron) in RANKS.items():
        directory = hf_model(model).directory
        backend = open_alone(config(1, {}, **{flag: expressions}), directory, free_ports(1))
        play_job(backend, home / f"{case}-one")
        backend.close()
        cfg = config(2, megatron, **{flag: expressions})
        facts = {"config": msgspec.to_builtins(cfg), "model_dir": str(directory)}
        jobs.append(facts | {"target": str(home / case)})
    run_ranks(home, 2, jobs)
    return home


@pytest.mark.parametrize("case", RANKS)
def test_two_ranks_train_what_one_trains(case: str, played: Path, hf_model: Any) -> None:
    """Also where all parameters of a rank are frozen."""
    before = load_file(hf_model(RANKS[case][0]).directory / "model.safetensors")
    wanted = load_file(played / f"{case}-one-0.weights")
    one = msgspec.json.decode((played / f"{case}-one-0.json").read_bytes())["results"]
    frozen = before.keys() - moved(wanted, before)
    assert frozen
    assert frozen != before.keys()
    for rank in range(2):
        found = load_file(played / f"{case}-{rank}.weights")
        assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-5
        assert {name for name in found if torch.equal(found[name], before[name])} == frozen
        seen = msgspec.json.decode((played / f"{case}-{rank}.json").read_bytes())
        for mine, theirs in zip(seen["results"], one, strict=True):
            assert mine[1] == pytest.approx(theirs[1], rel=1e-4)
        assert seen["nan_skipped"]
