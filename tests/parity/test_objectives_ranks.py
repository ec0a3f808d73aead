"""Every estimator and every correction trains on two ranks as it does on one process."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from agentrl.algorithms.load import load_algorithm
from agentrl.config.dapo import VALUES as DAPO
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.shipped import TRUST_REGIONS
from tests.estimators import ESTIMATORS, flags_of
from tests.parity import leases
from tests.parity.alone import open_alone
from tests.parity.states import CONTEXT, DISTRIBUTED, EXPERT, PIPELINE, SEQUENCE, apart
from tests.slices import of_the_day

#: The first case of a session waits for those that share its processes.
pytestmark = pytest.mark.timeout(2400)

#: Layout of two ranks -> model, Megatron settings.
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp2": ("qwen3", DISTRIBUTED),
    "tp2": ("qwen3", SEQUENCE),
    "pp2": ("qwen3", PIPELINE),
    "cp2": ("qwen3", CONTEXT),
    "ep2": ("qwen3-moe", EXPERT),
}
_DISTILLED: dict[str, Any] = {"use_opd": True, "opd_kl_coef": 0.3}
_MASKED: dict[str, Any] = {"tis_mode": "mask", "tis_clip_low": 0.6, "tis_clip": 1.6}
#: Bounds of trust regions by which some tokens of these leases are kept and some are not.
_BOUNDS = {"token": ":0.5:2", "sequence": ":1e-7:9", "geometric": ":0.25:1.1", "opsm": ":0.5"}
_BOUNDS |= {"veto": ":0.02", "dppo": ":0.002", "dppo-kl": ":0.0002"}
#: What is trained by -> its flags.
OBJECTIVES: dict[str, dict[str, Any]] = {
    **{name: flags_of(name) for name in ESTIMATORS},
    "dr-grpo": {"disable_grpo_std_normalization": True, "loss_length": 40},
    "dapo": {
        **{name: value for name, value in DAPO.items() if name != "dynamic_sampling_filter_path"},
        "overlong_max_length": 30,
        "overlong_buffer_length": 20,
    },
    "vcpo": PRESETS["vcpo"].values,
    "opd": _DISTILLED,
    "opd-served": {**_DISTILLED, "opd_type": "sglang"},
    "kl-loss": {"use_kl_loss": True, "kl_loss_coef": 0.1, "use_unbiased_kl": True},
    "normalized": {"normalize_advantages": True, "entropy_coef": 0.01},
    "bypass": {"use_rollout_logprobs": True},
    "uncorrected": {"use_tis": False},
    "icepop": _MASKED,
    "sequence-is": {"tis_level": "sequence", "tis_clip": 3.0},
    "geometric-is": {"tis_level": "geometric", "tis_clip_low": 0.3, "tis_clip": 0.9},
    "mis": {"trust_region": ["token:0.5:2", "veto:0.02"]},
    **{
        f"region-{name}": {"trust_region": [name + _BOUNDS.get(name, "")]}
        for name in TRUST_REGIONS.places
    },
}
CASES = [f"{objective}-{layout}" for objective in OBJECTIVES for layout in LAYOUTS]
PLAYED = of_the_day(CASES, 12)
#: Cases that two processes play one after the other.
TOGETHER = 20


class Case(NamedTuple):
    """One objective on one layout."""

    objective: str
    model: str
    megatron: dict[str, Any]


def case_of(name: str) -> Case:
    objective, _, layout = name.rpartition("-")
    return Case(objective, *LAYOUTS[layout])


def config(ranks: int, objective: str, megatron: dict[str, Any], teacher: Path) -> RunConfig:
    """Adam's epsilon is large beside the rounding of a gradient, as in `test_megatron_ranks`."""
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        num_steps_per_rollout=2,
        max_tokens_per_gpu=80,
        max_staleness=2,
        lr=1e-3,
        adam_eps=1e-5,
        clip_grad=0.5,
        opd_teacher_load=str(teacher),
        megatron=megatron,
        **OBJECTIVES[objective],
    )


@pytest.fixture(scope="module")
def teacher(hf_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a model with other weights than the policy's."""
    home = tmp_path_factory.mktemp("teachers")

    def find(model: str) -> Path:
        directory = home / model
        if not directory.exists():
            directory.mkdir()
            source = hf_model(model).directory
            (directory / "config.json").write_bytes((source / "config.json").read_bytes())
            tensors = load_file(source / "model.safetensors")
            moved = {name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}
            save_file(moved, directory / "model.safetensors", {"format": "pt"})
        return directory

    return find


@pytest.fixture(scope="module")
def alone(
    hf_model: Any,
    teacher: Callable[[str], Path],
    free_ports: Callable[[int], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Case], Path]:
    """What one process makes of a case; the prefix of its files."""
    home = tmp_path_factory.mktemp("alone")

    def find(case: Case) -> Path:
        target = home / f"{case.objective}-{case.model}"
        if not Path(f"{target}-0.json").exists():
            cfg = config(1, case.objective, {}, teacher(case.model))
            models = load_algorithm(cfg).needs.models
            directory = hf_model(case.model).directory
            with closing(open_alone(cfg, directory, free_ports(1), models=models)) as backend:
                leases.play(backend, cfg, target)
        return target

    return find


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    hf_model: Any,
    teacher: Callable[[str], Path],
    run_ranks: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """What two ranks make of a case; the prefix of their files. Some of the session's cases share
    processes, whose start takes longer than the work."""
    home = tmp_path_factory.mktemp("shared")
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    own = (item for item in items if item.path == request.path and hasattr(item, "callspec"))
    names = sorted({str(item.callspec.params["name"]) for item in own})

    def find(name: str) -> Path:
        if not (home / f"{name}-0.json").exists():
            first = names.index(name) // TOGETHER * TOGETHER
            run_ranks(home, 2, [job_of(each) for each in names[first : first + TOGETHER]])
        return home / name

    def job_of(name: str) -> dict[str, Any]:
        case = case_of(name)
        cfg = config(2, case.objective, case.megatron, teacher(case.model))
        return {
            "config": msgspec.to_builtins(cfg),
            "model_dir": str(hf_model(case.model).directory),
            "models": sorted(load_algorithm(cfg).needs.models),
            "target": str(home / name),
            "leases": True,
        }

    return find


def numbers(prefix: Path, rank: int) -> Iterator[tuple[str, float]]:
    """All that the iterations reported, by name."""
    for number, iteration in enumerate(json.loads(Path(f"{prefix}-{rank}.json").read_text())):
        yield from ((f"{number} {name}", count) for name, count in iteration["counts"].items())
        for model, steps in iteration["steps"].items():
            for step, told in enumerate(steps):
                for name, measure in told.items():
                    for place, value in enumerate(measure):
                        yield f"{number} {model} {step} {name} {place}", float(value)


@pytest.mark.parametrize("name", PLAYED)
def test_two_ranks_learn_by_every_objective_what_one_process_does(
    name: str,
    shared: Callable[[str], Path],
    alone: Callable[[Case], Path],
    hf_model: Any,
    record_property: Callable[[str, object], None],
) -> None:
    case = case_of(name)
    prefix = alone(case)
    wanted, told = load_file(f"{prefix}-0.weights"), dict(numbers(prefix, 0))
    before = load_file(hf_model(case.model).directory / "model.safetensors")
    moved = {key: tensor for key, tensor in wanted.items() if key in before}
    assert apart(moved, {key: before[key] for key in moved}) > 1e-3
    for rank in range(2):
        mine = dict(numbers(shared(name), rank))
        assert mine.keys() == told.keys()
        off = {key: abs(mine[key] - told[key]) / max(1, abs(told[key])) for key in told}
        assert {key: found for key, found in off.items() if found >= 1e-5} == {}
        worst = apart(load_file(f"{shared(name)}-{rank}.weights"), wanted)
        record_property("weights", worst)
        assert worst < 1e-5


def test_every_region_drops_some_tokens_of_these_leases_and_not_all(
    alone: Callable[[Case], Path],
) -> None:
    shares = {}
    for objective in (name for name in OBJECTIVES if name.startswith("region-")):
        told = dict(numbers(alone(Case(objective, "qwen3", {})), 0))
        dropped, num = (
            sum(told[f"0 policy {step} dropped {place}"] for step in range(2)) for place in range(2)
        )
        shares[objective] = dropped / num
    assert {name: share for name, share in shares.items() if not 0 < share < 1} == {}
