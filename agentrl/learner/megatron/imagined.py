"""Ranks of the learner that are not there: one of any number, alone in this process.

Inside `imagined_rank` the learner's own code builds its models and takes its steps, and no number
is computed: tensors of floating point have a shape and a type and no data (torch's FakeTensorMode),
and a collective is noted (`Traffic`) and done at once. Tensors of integers are real, so that
lengths, positions and the cuts of parallelism are those of a run.

Under `as_cuda` the branches for GPUs are taken (`Tensor.is_cuda` is true), with attention's kernel
as torch describes it to its own tensors without data.

Stand-ins: a number that is read out of a tensor without data is 1; the shapes that stages of a
pipeline would tell each other are given; what ranks gather of objects and integers is this rank's
own; a mask of attention is a matrix of no meaning.

    entered -> megatron-core's groups are open, each of this process alone -> left: all as it was
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.attention import bias
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from agentrl.config.megatron import MegatronSettings
from agentrl.learner.footprint import Collective
from agentrl.learner.megatron import parallel

__all__ = ["Traffic", "imagined_rank"]

#: What is read out of a tensor without data; 1.0 of any other type.
_ONES = {torch.bool: True, torch.int32: 1, torch.int64: 1}
#: As they are usually called.
_KINDS = {
    "_allgather_base_": "allgather",
    "allgather_into_tensor_coalesced_": "allgather",
    "allreduce_coalesced_": "allreduce",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_base_": "alltoall",
}
#: The other end of a message notes it.
_NOT_NOTED = ("recv_", "recv_any_source_", "barrier")


class Traffic:
    """What this rank's collectives move."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], tuple[int, int]] = {}

    def note(self, operation: str, group: Any, num_bytes: int) -> None:
        """One call more."""
        if operation in _NOT_NOTED:
            return
        kind = _KINDS.get(operation, operation.strip("_"))
        key = (kind, *_of_group(kind, group))
        calls, before = self._found.get(key, (0, 0))
        self._found[key] = (calls + 1, before + num_bytes)

    def collectives(self) -> list[Collective]:
        """In the order of their first calls, but for groups of one rank, where nothing moves."""
        return [Collective(*key, *both) for key, both in self._found.items() if key[2] > 1]


def _of_group(kind: str, group: Any) -> tuple[str, int]:
    """What megatron-core has a group for, and its size."""
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    if kind == "send":  # megatron-core takes the group of all ranks for some of them
        return "pipeline", pipeline.size()
    for name, of_megatron in (
        ("tensor", parallel_state.get_tensor_model_parallel_group()),
        ("context", parallel_state.get_context_parallel_group()),
        ("pipeline", pipeline),
        ("data", parallel_state.get_data_parallel_group(with_context_parallel=True)),
        ("embedding", parallel_state.get_embedding_group(check_initialized=False)),
        ("expert", parallel_state.get_expert_model_parallel_group()),
        ("expert", parallel_state.get_expert_tensor_and_model_parallel_group()),
        ("exp. data", parallel_state.get_expert_data_parallel_group()),
    ):
        if getattr(of_megatron, "group_name", None) == group.group_name:
            return name, group.size()
    return "all" if group.size() == dist.get_world_size() else "others", group.size()


@contextmanager
def imagined_rank(
    settings: MegatronSettings,
    *,
    rank: int,
    world_size: int,
    stages_of_a_rank: int,
    message: Sequence[int],
    as_cuda: bool,
) -> Iterator[Traffic]:
    """Be rank `rank` of `world_size`. `message`: the shape of what pipeline stages hand on."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    traffic = Traffic()
    with ExitStack() as stack:
        for owner, name, stand_in in _stand_ins(list(message)):
            stack.enter_context(_in_place(owner, name, stand_in))
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        stack.callback(parallel.close_groups)
        parallel.share_out(settings, seed=1, stages_of_a_rank=stages_of_a_rank)
        stack.enter_context(_Asked(as_cuda=as_cuda))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_Imagined(traffic))
        yield traffic


@contextmanager
def _in_place(owner: Any, name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _stand_ins(message: list[int]) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What of torch and megatron-core would wait for other ranks, or read what has no data."""
    new_group = dist.new_group

    def alone(*args: Any, **named: Any) -> Any:
        return new_group(*args, **(named | {"backend": "fake"}))

    def gathered(objects: list[Any], own: Any, group: Any = None) -> None:
        objects[:] = [own] * len(objects)

    def shapes(_: Any, _next: Any, _prev: Any, recv_prev: bool, recv_next: bool) -> Any:
        return [message if is_coming else [0, 0, 0] for is_coming in (recv_prev, recv_next)]

    def mask(num_queries: int, num_keys: int) -> Tensor:
        return torch.empty((num_queries, num_keys), dtype=torch.bool)

    yield dist, "new_group", alone
    yield dist, "all_gather_object", gathered
    yield P2PCommunicator, "_communicate_shapes", shapes
    yield bias, "causal_lower_right", mask


class _Asked(TorchFunctionMode):
    """Answers to what torch asks of tensors above its operations."""

    _is_cuda: Any = vars(torch.Tensor.__base__)["is_cuda"].__get__

    def __init__(self, *, as_cuda: bool) -> None:
        super().__init__()
        self._as_cuda = as_cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._as_cuda and func == self._is_cuda:
            return True
        if self._as_cuda and func is scaled_dot_product_attention:
            return _in_one_kernel(*args)
        if func is torch.tensor and any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(args)):
            args = tree_map(lambda leaf: 1.0 if isinstance(leaf, FakeTensor) else leaf, args)
        return func(*args, **(kwargs or {}))


def _in_one_kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What FlashAttention makes and keeps of [1, heads, t, d], under whatever mask. Values that are
    narrower than keys, as in latent attention, are padded, as the learner does for that kernel."""
    from torch.nn.attention.varlen import varlen_attn

    width, lacking = value.shape[-1], key.shape[-1] - value.shape[-1]
    value = pad(value, (0, lacking)) if lacking else value
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    ends = torch.zeros(2, dtype=torch.int32)
    out = varlen_attn(q, k, v, ends, ends, 1, 1, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out.transpose(0, 1).unsqueeze(0)[..., :width]


class _Imagined(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which operations are done, which are noted, and which have a result without data."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._traffic = traffic

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, to keep it from compiling this

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace == "c10d":
            return self._noted(func, args)
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _ONES.get(args[0].dtype, 1.0)
        if func is torch.ops.aten.masked_select.default and isinstance(args[0], FakeTensor):
            return args[0].new_empty(_count_of(args[1], args[0].shape))
        if _is_of_integers(func, args, named):
            with unset_fake_temporarily():
                return func(*args, **named)
        return func(*args, **named)

    def _noted(self, func: Any, args: Any) -> Any:
        group = next(ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
        sizes = [sum(t.nbytes for t in _tensors(arg)) for arg in args[:2]]
        self._traffic.note(func._opname, group, max(sizes))
        _gather_own(func, args, group.size())
        work = FakeWork().boxed()
        return work if len(func._schema.returns) == 1 else (args[0], work)


def _gather_own(func: Any, args: Any, size: int) -> None:
    """Of integers: what this rank gives is what each gives."""
    if func is not torch.ops.c10d._allgather_base_.default or isinstance(args[1], FakeTensor):
        return
    with unset_fake_temporarily():
        args[0].view(size, -1).copy_(args[1].reshape(1, -1))


def _count_of(mask: Tensor, shape: torch.Size) -> int:
    with unset_fake_temporarily():
        return int(mask.expand(shape).sum())


def _tensors(arg: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arg) if isinstance(leaf, Tensor)]


def _is_of_integers(func: Any, args: Any, named: dict[str, Any]) -> bool:
    """Whether an operation has numbers to be done with: its tensors are of integers and have data,
    or it makes one of integers."""
    if tensors := _tensors((args, named)):
        return not any(isinstance(t, FakeTensor) or t.is_floating_point() for t in tensors)
    if (dtype := named.get("dtype")) is not None:
        return not dtype.is_floating_point
    return func._opname == "arange" and all(isinstance(arg, int) for arg in args)
