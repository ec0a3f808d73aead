"""Counts what would make a learner on a GPU wait for its host: seen on the CPU, by what torch is
asked for.

`HostTraffic` sees calls of Python (a copy to the host that is none here, a list made of a tensor),
and below them what torch dispatches (a number taken out of a tensor, a shape that depends on
values). `launches` are all operations that would start a kernel.
"""

import sys
from collections import Counter
from collections.abc import Container, Mapping
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["HostTraffic"]

aten = torch.ops.aten

#: What the host learns of a tensor before it can go on.
_SYNCS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
}
#: Indices of these are found first, if they are booleans.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
#: Calls of Python that copy to the host, and that do nothing here.
_COPIES = {Tensor.cpu: "cpu", Tensor.numpy: "numpy", Tensor.tolist: "tolist"}
#: Operations that start nothing on a device.
_VIEWS = (
    *("view", "detach", "alias", "expand", "slice", "select", "split", "transpose", "permute"),
    *("unsqueeze", "squeeze", "unbind", "as_strided", "t.default", "reshape", "empty"),
)


class HostTraffic:
    """While it is entered: `syncs` and `copies` by the place in the code and what was asked for
    there, `copied_bytes`, and `launches`. What is asked for at `passed_over`, functions by their
    full names, is not counted."""

    def __init__(self, passed_over: Container[str] = ()) -> None:
        self._passed_over = passed_over
        self.syncs: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()
        self.copied_bytes = 0
        self.launches = 0
        self._modes: tuple[Any, ...] = (_Calls(self), _Dispatched(self))

    def __enter__(self) -> "HostTraffic":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*raised)

    def copied(self, name: str, tensor: Any) -> None:
        """A copy was asked for."""
        if (place := _place()) not in self._passed_over:
            self.copies[place, name] += 1
            self.copied_bytes += tensor.nbytes

    def waited(self, name: str) -> None:
        """Something was asked for that the host waits for."""
        if (place := _place()) not in self._passed_over:
            self.syncs[place, name] += 1


class _Calls(TorchFunctionMode):
    def __init__(self, traffic: HostTraffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _COPIES:
            self._traffic.copied(_COPIES[func], args[0])
        elif func is Tensor.to and "cpu" in (*args[1:2], (kwargs or {}).get("device")):
            # A device that is no word is the learner's own, which is the host in a test.
            self._traffic.copied("to", args[0])
        return func(*args, **(kwargs or {}))


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, traffic: HostTraffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        by_booleans = func in _INDEXING and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        if func in _SYNCS or by_booleans:
            self._traffic.waited(name.partition(".")[0])
        elif not name.startswith(_VIEWS):
            self._traffic.launches += 1
        return func(*args, **(kwargs or {}))


def _place() -> str:
    """Module and function of the code that asked, which is not torch's own but for optimizers."""
    frame = sys._getframe(1)
    while True:
        module = str(frame.f_globals.get("__name__"))
        of_torch = module.partition(".")[0] == "torch" and ".optim" not in module
        if not of_torch and module != __name__ and frame.f_code.co_name != "__torch_function__":
            return f"{module}.{_function(frame.f_code)}"
        if frame.f_back is None:
            return module
        frame = frame.f_back


def _function(code: CodeType) -> str:
    """Its name; of a comprehension, which has code of its own before Python 3.12 alone, that of the
    function around it."""
    if code.co_name not in ("<listcomp>", "<dictcomp>", "<setcomp>"):
        return code.co_name
    around = code.co_qualname.removesuffix(f".<locals>.{code.co_name}")
    return around.rpartition(".")[2]
