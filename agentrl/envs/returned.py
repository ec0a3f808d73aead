"""What a function of `--custom-generate-function-path` has returned: samples, looked at.

Nothing is taken on trust: which tokens are trained is what `loss_mask` says, and whether they were
sampled is found out where the calls are known (`actors/bound_samples.py`). The function's own
log-probabilities are read by nobody.
"""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentrl.envs.messages import Step
from agentrl.errors import EnvError
from agentrl.roles import MAX_ROLE, POLICY, is_role

__all__ = [
    "Ending",
    "Returned",
    "SampledStep",
    "ending_of",
    "missing",
    "numbered",
    "read_samples",
    "response_ids",
    "returned",
]

_FIELDS = ("tokens", "response_length", "loss_mask", "status")
_MAX_ID = 2**31 - 1

Ending = Literal["pending", "completed", "truncated", "aborted", "failed"]


class Returned(msgspec.Struct, frozen=True):
    """A sample: its tokens, and for each whether it is to be trained. `num_prompt`: tokens before
    its response; `excluded`: it stays out of the loss; `role`: who the policy was in it, as its
    `train_metadata["role"]` says."""

    tokens: list[int]
    trained: bytes
    num_prompt: int
    excluded: bool
    role: str = POLICY


class SampledStep(Step):
    """The end of an episode whose tokens are those of `samples`; `failed`: as the function says."""

    samples: tuple[Returned, ...] = ()
    failed: bool = False


def missing(sample: object) -> list[str]:
    """The fields of a sample that this one lacks."""
    return [name for name in _FIELDS if not hasattr(sample, name)]


def read_samples(found: object, who: str) -> list[Any]:
    """The samples of a function's answer: one, or a list. Raises EnvError for anything else."""
    samples = list(found) if isinstance(found, (list, tuple)) else [found]
    if not samples:
        raise EnvError(f"{who} returned an empty list; return the sample, or a list of samples")
    for number, sample in enumerate(samples):
        if missing(sample):
            place = f"[{number}]" if isinstance(found, (list, tuple)) else ""
            raise EnvError(
                f"{who} returned{place} {type(sample).__name__} {sample!r:.80}; return the sample, "
                "or a list of samples"
            )
    return samples


def ending_of(samples: Sequence[Any]) -> Ending:
    """How they ended: the first of aborted, failed and truncated that one of them did."""
    found = {str(getattr(sample.status, "value", sample.status)) for sample in samples}
    ends: tuple[Ending, ...] = ("aborted", "failed", "truncated")
    return next((end for end in ends if end in found), "completed")


def returned(sample: Any, who: str) -> Returned:
    """The tokens of a sample. Raises EnvError for those that cannot be right."""
    tokens, length = _tokens(sample, who)
    mask = [1] * length
    if sample.loss_mask is not None:
        mask = _integers(sample.loss_mask, f"{who}.loss_mask")
    if len(mask) != length:
        raise EnvError(f"{who}: loss_mask has {len(mask)} entries, and response_length is {length}")
    for at, value in enumerate(mask):
        if value > 1:
            raise EnvError(f"{who}: loss_mask[{at}] is {value}; it is 1 (trained) or 0")
    num_prompt = len(tokens) - length
    is_excluded = bool(getattr(sample, "remove_sample", False))
    role = _role(getattr(sample, "train_metadata", None), who)
    return Returned(tokens, bytes(num_prompt) + bytes(mask), num_prompt, is_excluded, role)


def response_ids(sample: Any, who: str) -> list[int]:
    """The tokens of a sample's response. Raises EnvError for those that cannot be right."""
    tokens, length = _tokens(sample, who)
    return tokens[len(tokens) - length :]


def _tokens(sample: Any, who: str) -> tuple[list[int], int]:
    """All, and how many of them are the response."""
    tokens = _integers(sample.tokens, f"{who}.tokens")
    (length,) = _integers([sample.response_length], f"{who}.response_length")
    if length > len(tokens):
        raise EnvError(f"{who}: response_length is {length}, and there are {len(tokens)} tokens")
    return tokens, length


def numbered(samples: Sequence[Returned]) -> list[Returned]:
    """The same, each a conversation of its role: `solver#0`, `solver#1`; one that is its role's
    only sample keeps the name."""
    num = Counter(sample.role for sample in samples)
    seen: Counter[str] = Counter()
    found = []
    for sample in samples:
        name = sample.role if num[sample.role] == 1 else f"{sample.role}#{seen[sample.role]}"
        seen[sample.role] += 1
        found.append(msgspec.structs.replace(sample, role=name))
    return found


def _role(told: Any, who: str) -> str:
    if not isinstance(told, Mapping) or told.get("role") is None:
        return POLICY
    role = told["role"]
    if not isinstance(role, str) or not is_role(role):
        raise EnvError(
            f'{who}.train_metadata["role"] is {role!r:.80}; a role is a printable text of at most '
            f"{MAX_ROLE} characters without a #"
        )
    return role


def _integers(values: Any, what: str) -> list[int]:
    """As they are, from a list, a tuple, an array or a tensor."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, (list, tuple)):
        raise EnvError(
            f"{what} is {type(values).__name__} {values!r:.80}; it must be a list of int"
        )
    found = []
    for at, value in enumerate(values):
        try:
            number = operator.index(value)
        except TypeError:
            number = int(value) if isinstance(value, float) and value in (0.0, 1.0) else -1
        if not 0 <= number <= _MAX_ID:
            raise EnvError(f"{what}[{at}] is {value!r:.80}; it must be an int that is not negative")
        found.append(number)
    return found
