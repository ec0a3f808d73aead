"""A reference that takes over the policy: on real Megatron, over checkpoints and ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone
from tests.parity.jobs import batches
from tests.parity.states import DISTRIBUTED, TENSOR, config, wholes

Open = Callable[..., MegatronBackend]
MOVING: dict[str, Any] = {"use_kl_loss": True, "ref_update_interval": 1}


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend with a reference; the one before is closed."""
    backends: list[MegatronBackend] = []

    def make(megatron: dict[str, Any], **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                config(1, megatron, **flags),
                hf_model("qwen3").directory,
                free_ports(1),
                num_training_steps=6,
                models=["reference"],
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def scores(backend: MegatronBackend, model: str) -> Tensor:
    return torch.cat(backend.run(model, batches([[7, 12], [5]], 1)))


@pytest.mark.parametrize(
    "megatron", [{}, {"bf16": True} | DISTRIBUTED], ids=["plain", "bf16-distributed"]
)
def test_a_reference_that_was_renewed_comes_back_bit_for_bit(
    megatron: dict[str, Any], opened: Open, follow_script: Any, tmp_path: Path
) -> None:
    backend = opened(megatron, run_id="run", **MOVING)
    first = scores(backend, "reference")
    follow_script(backend, [("step", "0"), ("step", "1")])
    assert not torch.equal(scores(backend, "policy"), first)
    backend.renew("reference")
    renewed = scores(backend, "reference")
    assert torch.equal(renewed, scores(backend, "policy"))
    follow_script(backend, [("step", "2"), ("save", str(tmp_path)), ("step", "3")])
    assert torch.equal(scores(backend, "reference"), renewed)
    wanted = scores(backend, "policy")

    again = opened(megatron, run_id="run", **MOVING)
    assert torch.equal(scores(again, "reference"), first)
    follow_script(again, [("load", str(tmp_path))])
    assert torch.equal(scores(again, "reference"), renewed)
    follow_script(again, [("step", "3")])
    assert torch.equal(scores(again, "policy"), wanted)

    for others in ({**MOVING, "run_id": "another"}, {"use_kl_loss": True, "run_id": "run"}):
        other = opened(megatron, **others)
        follow_script(other, [("load", str(tmp_path))])
        assert torch.equal(scores(other, "reference"), first)


def test_two_ranks_renew_their_shards_alike(hf_model: Any, run_ranks: Any, tmp_path: Path) -> None:
    def at(name: str) -> str:
        return str(tmp_path / name)

    scripts: list[tuple[dict[str, Any], str]] = [
        (DISTRIBUTED, "step 0, renew reference, save equal, step 1, save apart"),
        (TENSOR, "load apart, save again"),
    ]
    jobs = [
        {
            "config": msgspec.to_builtins(config(2, megatron, **MOVING)),
            "model_dir": str(hf_model("qwen3").directory),
            "target": at(f"job-{number}"),
            "script": [
                (verb, at(argument) if verb in ("save", "load") else argument)
                for verb, argument in (line.split(" ") for line in text.split(", "))
            ],
            "models": ["reference"],
        }
        for number, (megatron, text) in enumerate(scripts)
    ]
    run_ranks(tmp_path, 2, jobs)
    equal, apart, again = (wholes(tmp_path / name) for name in ("equal", "apart", "again"))
    references = {key for key in equal if key.startswith("reference.")}
    assert len(references) == len(references & apart.keys()) > 10
    for key in references:
        policy = key.removeprefix("reference.")
        assert torch.equal(equal[key], equal[policy])
        assert torch.equal(equal[key], apart[key])
        assert torch.equal(apart[key], again[key])
    assert any(not torch.equal(apart[k], apart[k.removeprefix("reference.")]) for k in references)
