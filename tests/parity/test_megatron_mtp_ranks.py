"""Two processes train layers of multi-token prediction as one does, in every layout."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file

from agentrl.config.run import RunConfig
from tests.parity import mtp_models
from tests.parity.alone import open_alone
from tests.parity.layout_cases import (
    CONTEXT,
    DISTRIBUTED,
    EXPERT,
    PIPELINE,
    SEQUENCE,
    TENSOR,
    TWICE,
)
from tests.parity.test_megatron_ranks import farthest, seen

#: Case -> model, Megatron settings; all of two ranks.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tp2": ("mimo", TENSOR),
    "tp2-sequence": ("mimo", SEQUENCE),
    "pp2": ("mimo", PIPELINE),
    "cp2": ("mimo", CONTEXT),
    "dp2": ("mimo", DISTRIBUTED),
    "pp2-twice": ("mimo-4layers", PIPELINE | TWICE),
    "tp2-sequence-glm4-moe-lite": ("glm4-moe-lite", SEQUENCE),
    "pp2-glm4-moe-lite": ("glm4-moe-lite", PIPELINE),
    "ep2-glm4-moe-lite": ("glm4-moe-lite", EXPERT),
    "ep2-glm4-moe": ("glm4-moe", EXPERT),
}


def config(ranks: int, megatron: dict[str, Any]) -> RunConfig:
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        rollout_temperature=0.8,
        lr=1e-3,
        adam_eps=1e-6,
        weight_decay=0.1,
        clip_grad=0.5,
        enable_mtp_training=True,
        megatron=megatron,
    )


@pytest.fixture(scope="module")
def model_of(
    make_hf_model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], mtp_models.MtpModel]:
    made: dict[str, mtp_models.MtpModel] = {}

    def find(name: str) -> mtp_models.MtpModel:
        if name not in made:
            more = {"num_hidden_layers": 4} if name.endswith("-4layers") else {}
            family = name.removesuffix("-4layers")
            made[name] = mtp_models.make(
                family, make_hf_model, tmp_path_factory.mktemp(name), **more
            )
        return made[name]

    return find


@pytest.fixture(scope="module")
def one_rank(
    model_of: Callable[[str], mtp_models.MtpModel],
    tmp_path_factory: pytest.TempPathFactory,
    free_ports: Callable[[int], int],
    play_job: Callable[[Any, Path], None],
) -> Callable[[str], Path]:
    home = tmp_path_factory.mktemp("one")

    def find(model: str) -> Path:
        if not (home / f"{model}-saved").exists():
            backend = open_alone(config(1, {}), model_of(model).directory, free_ports(1))
            with closing(backend):
                play_job(backend, home / model)
        return home / model

    return find


@pytest.fixture(scope="module")
def two_ranks(
    request: pytest.FixtureRequest,
    model_of: Callable[[str], mtp_models.MtpModel],
    run_ranks: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """What two ranks make of the session's cases, whose processes start once."""
    home = tmp_path_factory.mktemp("two")
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    own = [item for item in items if item.path == request.path]
    jobs = [
        {
            "config": msgspec.to_builtins(config(2, megatron)),
            "model_dir": str(model_of(model).directory),
            "target": str(home / name),
        }
        for name, (model, megatron) in CASES.items()
        if any(item.callspec.params["case"] == name for item in own)
    ]
    run_ranks(home, 2, jobs)
    return home


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_the_layers_as_one_does(
    case: str,
    two_ranks: Path,
    one_rank: Callable[[str], Path],
    model_of: Callable[[str], mtp_models.MtpModel],
) -> None:
    model, _ = CASES[case]
    wanted, one = one_rank(model), seen(one_rank(model), 0)["results"]
    for rank in range(2):
        for mine, theirs in zip(seen(two_ranks / case, rank)["results"], one, strict=True):
            assert mine[:2] == [False, pytest.approx(theirs[1], rel=1e-4)]
            assert mine[2]["mtp_loss"] == pytest.approx(theirs[2]["mtp_loss"], rel=1e-4)
    found = load_file(two_ranks / f"{case}-saved" / "model.safetensors")
    expected = load_file(Path(f"{wanted}-saved") / "model.safetensors")
    assert found.keys() == expected.keys()
    assert farthest(expected, found) < 1e-5
    first = load_file(model_of(model).directory / "model.safetensors")
    layers = {n: t for n, t in first.items() if n.startswith(model_of(model).prefixes)}
    assert farthest(layers, found) > 1e-3
