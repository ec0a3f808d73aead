"""Packed sequences are turned bit for bit as megatron-core turns each of them alone."""

from typing import Any

import pytest
import torch
from megatron.core.models.common.embeddings import rope_utils
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.learner.megatron.rotary import rotate_packed

LENGTHS, HEADS, DIM = (12, 4, 20, 8), 3, 16


class Group:
    """A context-parallel group."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


def share(length: int, size: int, rank: int) -> list[int]:
    """Positions of a sequence that a rank holds."""
    chunk = length // (2 * size)
    both = (rank, 2 * size - 1 - rank)
    return [place for each in both for place in range(each * chunk, (each + 1) * chunk)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", [DIM, DIM // 2], ids=["whole", "in part"])
@pytest.mark.parametrize(
    "how",
    [{}, {"rotary_interleaved": True}, {"multi_latent_attention": True, "mscale": 1.3}],
    ids=["halves", "interleaved", "latent"],
)
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_each_sequence_is_turned_from_its_own_start(
    size: int, rank: int, how: dict[str, Any], turned: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    freqs = torch.outer(torch.arange(max(LENGTHS)), torch.rand(turned // 2)).repeat(1, 2)
    freqs = freqs[:, None, None].float()
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    t = torch.randn(sum(LENGTHS) // size, HEADS, DIM).to(dtype)
    own = [share(length, size, rank) for length in LENGTHS]
    found = rotate_packed(t, ends, freqs, cp_group=Group(size, rank), **how)
    parts = torch.split(t, [len(places) for places in own])
    wanted = [
        rope_utils._apply_rotary_pos_emb_bshd(part[:, None], freqs[places], **how)[:, 0]
        for part, places in zip(parts, own, strict=True)
    ]
    assert torch.equal(found, torch.cat(wanted))


def test_positions_are_those_of_the_sequences_at_hand() -> None:
    freqs = torch.arange(8.0)[:, None, None, None].expand(8, 1, 1, 4)
    t = torch.ones(8, 1, 4)
    for ends in ([0, 8], [0, 3, 8], [0, 8]):
        found = rotate_packed(t, torch.tensor(ends).int(), freqs, cp_group=Group(1, 0))
        begins = [index for index in range(8) if torch.equal(found[index], t[index])]
        assert begins == ends[:-1]


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the cosines that are made."""

    num = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.num += "aten.cos" in str(func)
        return func(*args, **(kwargs or {}))


def test_queries_and_keys_of_all_layers_share_their_cosines() -> None:
    ends, freqs = torch.tensor([0, 3, 8]), torch.randn(16, 1, 1, 4)
    both = (torch.randn(8, 2, 4), torch.randn(8, 1, 4))
    with Counted() as counted:  # type: ignore[no-untyped-call]
        layers = [
            [rotate_packed(t, ends, freqs, cp_group=Group(1, 0)) for t in both] for _ in range(4)
        ]
    assert counted.num == 1
    assert all(torch.equal(a, b) for a, b in zip(layers[0], layers[-1], strict=True))


def test_another_micro_batch_scale_width_or_frequency_has_its_own() -> None:
    """Nothing of what was made before is taken: each is compared with a call that knows nothing."""
    t, ends, freqs = torch.randn(8, 2, 4), torch.tensor([0, 3, 8]), torch.randn(16, 1, 1, 4)
    calls: list[tuple[Any, ...]] = [
        (t, ends, freqs, {}),
        (t, torch.tensor([0, 5, 8]), freqs, {}),
        (t, ends, freqs * 2, {}),
        (t, ends, freqs, {"mscale": 0.5}),
        (t.double(), ends, freqs, {}),
        (t, ends, freqs, {}),
    ]
    for tensor, places, angles, more in calls:
        known, fresh = (
            rotate_packed(tensor, each, angles, cp_group=Group(1, 0), **more)
            for each in (places, places.clone())
        )
        assert torch.equal(known, fresh)
