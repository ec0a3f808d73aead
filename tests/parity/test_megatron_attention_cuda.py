"""The attention of a GPU, on the CPU: a stand-in for the variable-length kernel that demands what
FlashAttention demands, and computes by the plain formula. No CUDA kernel runs here."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.device_defaults import defaults_for
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.attention import PackedAttention
from tests.parity.alone import open_alone

Open = Callable[..., MegatronBackend]


class OnCuda(Tensor):
    """A tensor of the host that says it is on a GPU."""

    is_cuda = True


class FlashAttention:
    """Takes the place of `varlen_attn`. `calls`: how often it was asked."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self.calls = 0

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        self.calls += 1
        given = self._signature.bind(*args, **options).arguments
        query, key, value = (given[name] for name in ("query", "key", "value"))
        for tensor in (query, key, value):
            if tensor.dtype not in (torch.float16, torch.bfloat16):
                raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
            assert tensor.dim() == 3
            assert tensor.stride(-1) == 1
            assert tensor.shape[-1] % 8 == 0
            assert tensor.shape[-1] == query.shape[-1], "one width for all"
        for name in ("cu_seq_q", "cu_seq_k"):
            assert given[name].dtype == torch.int32
            assert int(given[name][-1]) == len(query)
        assert type(given["max_q"]) is type(given["max_k"]) is int
        assert int(given["cu_seq_q"].diff().max()) <= given["max_q"]
        before, behind = given["window_size"]
        assert behind == 0, "causal"
        assert given.get("enable_gqa") or query.shape[1] == key.shape[1]
        scale = given.get("scale") or 1 / math.sqrt(query.shape[-1])
        sizes = given["cu_seq_q"].diff().tolist()
        plain = (x.as_subclass(Tensor) for x in (query, key, value))
        parts = zip(*(torch.split(x, sizes) for x in plain), strict=True)
        found = [_plain(*part, scale=scale, before=before) for part in parts]
        return torch.cat(found).as_subclass(OnCuda)


def _plain(query: Tensor, key: Tensor, value: Tensor, *, scale: float, before: int) -> Tensor:
    """softmax(scale Q K') V of one sequence, causal, in float32; -1: all before are seen."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(repeats, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    if before >= 0:
        hidden |= torch.ones_like(hidden).tril(-before - 1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> FlashAttention:
    """The stand-in, in the place of torch's function, whose signature it keeps to."""
    varlen = torch.nn.attention.varlen
    found = FlashAttention(inspect.signature(varlen.varlen_attn))
    monkeypatch.setattr(varlen, "varlen_attn", found)
    return found


@pytest.fixture
def open_backend(free_ports: Callable[[int], int], hf_model: Any) -> Iterator[Open]:
    """Opens one single-rank backend at a time, with these Megatron settings."""
    opened: list[MegatronBackend] = []

    def make(megatron: dict[str, Any], model: str = "qwen3") -> MegatronBackend:
        for backend in opened:
            backend.close()
        backend = open_alone(
            RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron),
            hf_model(model).directory,
            free_ports(1),
        )
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.close()


@pytest.fixture
def pretend_cuda() -> Iterator[Callable[[], None]]:
    """From its call on, every core attention sees tensors of a GPU and its caller plain ones."""
    hooks: list[Any] = []

    def enter(module: torch.nn.Module, args: Any) -> Any:
        if isinstance(module, PackedAttention):
            return tuple(x.as_subclass(OnCuda) if isinstance(x, Tensor) else x for x in args)
        return None

    def leave(module: torch.nn.Module, args: Any, output: Any) -> Any:
        return output.as_subclass(Tensor) if isinstance(module, PackedAttention) else None

    def begin() -> None:
        register = torch.nn.modules.module
        hooks.append(register.register_module_forward_pre_hook(enter))
        hooks.append(register.register_module_forward_hook(leave))

    yield begin
    for hook in hooks:
        hook.remove()


def step(backend: MegatronBackend, batch: MicroBatch, loss: LossFn) -> tuple[Tensor, float]:
    """Log-probabilities before the step, and its gradient norm."""
    (logprobs,) = backend.run("policy", [batch])
    return logprobs, backend.step("policy", [batch], loss).grad_norm


@pytest.mark.parametrize("model", ["qwen3", "mistral-window", "deepseek-v3"])
def test_settings_of_a_gpu_train_through_the_variable_length_kernel(
    model: str,
    flash: FlashAttention,
    pretend_cuda: Callable[[], None],
    open_backend: Open,
    packed: Any,
    pg_loss: LossFn,
) -> None:
    batch = packed([30, 7, 19, 1], 1)
    wanted, norm = step(open_backend(defaults_for("cuda"), model), batch, pg_loss)
    assert flash.calls == 0
    pretend_cuda()
    found, found_norm = step(open_backend(defaults_for("cuda"), model), batch, pg_loss)
    assert flash.calls == 4, "two layers, in each pass"
    assert float((found - wanted).abs().max()) < 0.05
    assert found_norm == pytest.approx(norm, rel=0.02)


@pytest.mark.parametrize("name", ["flash", "auto"])
def test_the_attention_that_scripts_name_is_what_computes(
    name: str,
    flash: FlashAttention,
    pretend_cuda: Callable[[], None],
    open_backend: Open,
    packed: Any,
) -> None:
    found = parse(["--device", "cpu", "--attention-backend", name], "train_async").config
    backend = open_backend(defaults_for("cuda") | found.megatron)
    pretend_cuda()
    backend.run("policy", [packed([30, 7], 1)])
    assert flash.calls == 2, "two layers"
    for other in ("fused", "unfused", "local"):
        with pytest.raises(ConfigError, match=f"--attention-backend {other}: attention of packed"):
            parse(["--attention-backend", other], "train_async")


def test_float32_on_a_gpu_goes_around_the_kernel_that_refuses_it(
    flash: FlashAttention,
    pretend_cuda: Callable[[], None],
    open_backend: Open,
    packed: Any,
    pg_loss: LossFn,
) -> None:
    batch = packed([30, 7, 19, 1], 1)
    wanted, norm = step(open_backend({}), batch, pg_loss)
    pretend_cuda()
    found, found_norm = step(open_backend({"bf16": False}), batch, pg_loss)
    assert flash.calls == 0
    assert torch.equal(found, wanted)
    assert found_norm == norm
