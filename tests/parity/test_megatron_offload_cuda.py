"""The optimizer whose state is on the host, of megatron-core, as it runs on a GPU: stand-ins for
CUDA's streams and for what is on which side, which demand what CUDA demands. No GPU runs here."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.optimizer import Optimizer
from tests.parity.alone import open_alone

DISTRIBUTED: dict[str, Any] = {"bf16": True, "use_distributed_optimizer": True}
OFFLOADED = DISTRIBUTED | {
    "optimizer_cpu_offload": True,
    "overlap_cpu_optimizer_d2h_h2d": True,
    "use_precision_aware_optimizer": True,
}
IN_PART = OFFLOADED | {"optimizer_offload_fraction": 0.5}
CUDA = torch.device("cuda")


class OnHost(Tensor):
    """What was moved to the host; every other tensor says that it is on a GPU."""

    is_cuda = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = self.as_subclass(Tensor)
        return plain.__reduce_ex__(protocol)


class Event:
    """What was copied is there only for who waits for it."""

    def __init__(self, streams: "Streams") -> None:
        self._streams = streams
        streams.pending.append(self)

    def synchronize(self) -> None:
        self._streams.pending.remove(self)

    def wait(self, _stream: Any) -> None:
        self.synchronize()


class Streams:
    """All streams of the device in one: which events nobody has waited for."""

    def __init__(self) -> None:
        self.pending: list[Event] = []
        self.num_waits = 0

    def record_event(self) -> Event:
        return Event(self)

    def wait_stream(self, _other: Any) -> None:
        self.num_waits += 1


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()

    @contextmanager
    def enter(_stream: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: found)
    of_device = type("Stream", (), {"__new__": lambda _: found})
    monkeypatch.setattr(torch.cuda, "Stream", of_device)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    return found


def pin(tensor: Tensor) -> Tensor:
    if tensor.is_cuda:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be")
    return tensor


Open = Callable[..., Any]


@pytest.fixture
def opened(
    hf_model: Any, free_ports: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> Open:
    """A learner of one rank and, as on a GPU, its optimizer."""

    @contextmanager
    def make(megatron: dict[str, Any], **flags: Any) -> Iterator[MegatronBackend]:
        cfg = RunConfig(
            actor_num_gpus_per_node=1, lr=1e-3, clip_grad=0.5, megatron=megatron, **flags
        )
        backend = open_alone(cfg, hf_model("qwen3").directory, free_ports(1))
        with closing(backend):
            settings = MegatronSettings.from_config(cfg)
            with monkeypatch.context() as patch:
                patch.setattr(Tensor, "is_cuda", property(lambda _: True), raising=False)
                patch.setattr(Tensor, "cpu", lambda tensor: tensor.detach().as_subclass(OnHost))
                patch.setattr(Tensor, "pin_memory", pin)
                backend._trained["policy"].optimizer = Optimizer(
                    cfg, settings, backend._model, None, CUDA
                )
            yield backend

    return make


def mains(backend: MegatronBackend) -> Tensor:
    """The float32 weights that the optimizer updates; the model's are they, rounded."""
    held = [(each, each.tensors["fp32_param"]) for each in backend._optimizer.held()]
    for each, main in held:
        mine = each.parameter.detach().view(-1)[each.start : each.start + main.numel()]
        assert torch.equal(main.to(torch.bfloat16).as_subclass(Tensor), mine)
    return torch.cat([main.as_subclass(Tensor) for _, main in held]).clone()


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("offloaded", [OFFLOADED, IN_PART], ids=["all", "half"])
def test_an_offloaded_optimizer_takes_the_steps_of_one_on_the_device(
    offloaded: dict[str, Any],
    streams: Streams,
    opened: Open,
    packed: Any,
    pg_loss: LossFn,
    tmp_path: Path,
) -> None:
    """All of it, or a part; saved after a step, read by one on the device, and the other way."""
    batches = [[packed([30, 7], 1), packed([19], 2)], [packed([40, 2], 4)]]
    fraction = offloaded.get("optimizer_offload_fraction", 1.0)
    found = {}
    for name, megatron in {"device": DISTRIBUTED, "host": offloaded}.items():
        (tmp_path / name).mkdir()
        with opened(megatron) as backend:
            results = [backend.step("policy", batches[0], pg_loss)]
            backend.save_state(tmp_path / name)
            results.append(backend.step("policy", batches[1], pg_loss))
            assert [result.skipped for result in results] == [False, False]
            found[name] = mains(backend)
            held = [t for each in backend._optimizer.held() for t in each.tensors.values()]
            on_host = sum(t.numel() for t in held if isinstance(t, OnHost))
            share = on_host / sum(t.numel() for t in held)
            assert streams.pending == []
            assert share == pytest.approx(fraction if name == "host" else 0.0, abs=0.3)
            assert (share == 1.0) is (name == "host" and fraction == 1.0)
    assert streams.num_waits > 0
    bar = 1e-6  # the host's fused AdamW rounds in another order
    assert apart(found["host"], found["device"]) < bar
    for name, other, megatron in (
        ("host", "device", DISTRIBUTED),
        ("device", "host", offloaded),
        ("host", "host", offloaded),
    ):
        with opened(megatron) as backend:
            backend.load_state(tmp_path / name)
            backend.step("policy", batches[1], pg_loss)
            assert apart(mains(backend), found[other]) < bar


def test_without_offloading_it_takes_the_optimizer_of_transformer_engine(opened: Open) -> None:
    alone = DISTRIBUTED | {"use_precision_aware_optimizer": True}
    with (
        pytest.raises(ConfigError, match=r"takes the fused AdamW of Transformer Engine, which is"),
        opened(alone),
    ):
        raise AssertionError("it was made")


def test_on_the_cpu_the_flags_change_nothing(
    hf_model: Any, free_ports: Callable[[int], int], packed: Any, pg_loss: LossFn
) -> None:
    """All of it is in float32 in host memory anyway, so a script for GPUs runs as it is."""
    found = []
    for megatron in ({"bf16": True}, OFFLOADED | {"use_distributed_optimizer": False}):
        backend = open_alone(
            RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron),
            hf_model("qwen3").directory,
            free_ports(1),
        )
        with closing(backend):
            backend.step("policy", [packed([30, 7], 1)], pg_loss)
            found.append(mains(backend))
    assert apart(*found) == 0.0
