"""`--flash-attention`: which kernel packed sequences attend by on GPUs. The package is a stand-in
that registers with torch as the real ones do; none of these has run on a GPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.library import Library
from torch.nn.attention import (
    current_flash_attention_impl,
    register_flash_attention_impl,
    restore_flash_attention_impl,
)

from agentrl.config.device_defaults import check_device, notes_on_device
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.learner.megatron.gpu_kernels import use_flash_attention

FAR = RunConfig(flash_attention="3")


class StandIn:
    """Takes the place of the kernel on the CPU, where torch has none, and notes its calls."""

    calls: list[bool]

    def __init__(self) -> None:
        self.calls = []
        StandIn.last = self
        self._library = Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
        self._library.impl("_flash_attention_forward", self._attend, "CPU")  # type: ignore[no-untyped-call]

    last: "StandIn"

    def _attend(self, query: torch.Tensor, *args: Any, **_: Any) -> tuple[torch.Tensor, ...]:
        self.calls.append(args[-2])
        state, sums = torch.zeros(2, dtype=torch.uint64), query.new_zeros(query.shape[1::-1])
        return query.clone(), sums.float(), state, state[0], state[:0]

    def remove(self) -> None:
        self._library._destroy()  # type: ignore[no-untyped-call]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch.nn.attention import _registry

    monkeypatch.setattr(_registry, "_FLASH_ATTENTION_IMPLS", {**_registry._FLASH_ATTENTION_IMPLS})
    register_flash_attention_impl("FA3", register_fn=StandIn)
    yield
    restore_flash_attention_impl(_raise_warn=False)


@pytest.mark.usefixtures("installed")
def test_packed_sequences_attend_by_the_package_that_the_flag_names() -> None:
    from torch.nn.attention.varlen import varlen_attn

    use_flash_attention("2")
    assert current_flash_attention_impl() is None
    use_flash_attention("3")
    assert current_flash_attention_impl() == "FA3"
    query = torch.randn(10, 2, 16, dtype=torch.bfloat16)
    ends = torch.tensor([0, 4, 10], dtype=torch.int32)
    found = varlen_attn(query, query, query, ends, ends, 6, 6, window_size=(-1, 0))
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, query)
    assert StandIn.last.calls == [True], "one causal call for all sequences"


@pytest.mark.parametrize("version", ["3", "4"])
def test_a_package_that_is_not_there_ends_the_rank_with_what_to_do(version: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"--flash-attention {version}: .*install it"):
        use_flash_attention(version)
    assert current_flash_attention_impl() is None


def test_it_is_missed_before_the_start_and_changes_nothing_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="no module flash_attn_interface here; install"):
        check_device(FAR, "cuda")
    check_device(RunConfig(), "cuda")
    check_device(FAR, "cpu")
    (note,) = notes_on_device(FAR, "cpu")
    assert note.startswith("--flash-attention 3 changes nothing on the CPU")
