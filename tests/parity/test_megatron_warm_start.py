"""A run that begins with another run's state takes its moments along, and not its schedule."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone

Open = Callable[[str], MegatronBackend]
STEPS = 6
#: Rates of a whole run: two steps of warm-up, then the decay.
RATES = [0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.0]


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens the backend of a run of `STEPS` steps; the one before is closed."""
    backends: list[MegatronBackend] = []

    def make(run_id: str) -> MegatronBackend:
        for backend in backends:
            backend.close()
        schedule: dict[str, Any] = {"lr_decay_style": "linear", "lr_warmup_iters": 2}
        backends.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, run_id=run_id, lr=1e-3, **schedule),
                hf_model("qwen3").directory,
                free_ports(1),
                num_training_steps=STEPS,
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def rates(backend: MegatronBackend, packed: Any, loss: Any, num: int) -> list[float]:
    """Learning rates of the next steps, which are taken."""
    return [backend.step("policy", [packed([20, 9], seed)], loss).lr for seed in range(num)]


def adam_steps(backend: MegatronBackend) -> set[float]:
    (part,) = backend._optimizer._optimizer.chained_optimizers
    return {float(state["step"]) for state in part.optimizer.state.values()}


def test_another_runs_state_begins_a_schedule_of_its_own(
    opened: Open, packed: Any, pg_loss: Any, tmp_path: Path
) -> None:
    source, middle = tmp_path / "source", tmp_path / "middle"
    source.mkdir()
    middle.mkdir()
    first = opened("first")
    assert rates(first, packed, pg_loss, STEPS) == pytest.approx(RATES)
    first.save_state(source)
    trained = {name: tensor.clone() for name, tensor in first.hf_tensors()}

    second = opened("second")
    second.load_state(source)
    assert all(torch.equal(trained[name], tensor) for name, tensor in second.hf_tensors())
    assert adam_steps(second) == {STEPS}
    assert rates(second, packed, pg_loss, 3) == pytest.approx(RATES[:3])
    second.save_state(middle)

    again = opened("second")
    again.load_state(middle)
    assert adam_steps(again) == {STEPS + 3}
    assert rates(again, packed, pg_loss, 4) == pytest.approx([*RATES[3:], 0.0])


def test_a_state_that_does_not_say_whose_it_is_goes_on_with_its_schedule(
    opened: Open, packed: Any, pg_loss: Any, tmp_path: Path
) -> None:
    backend = opened("first")
    rates(backend, packed, pg_loss, 2)
    backend.save_state(tmp_path)
    layout = '{"ranks":1,"tensor":1,"pipeline":1,"context":1}'
    (tmp_path / "progress.json").write_text(f'{{"completed_steps":2,"layout":{layout}}}')
    again = opened("second")
    again.load_state(tmp_path)
    assert rates(again, packed, pg_loss, 2) == pytest.approx(RATES[2:4])
