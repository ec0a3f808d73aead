"""Whether engines hold what they were given: what each says of its weights after a push, and again
before the next. A push waits for no such answer: all is judged before the next one.

    push of version v -> sealed(v, digest) -> asked again: the same, or somebody changed them
                                           -> push of v + 1: another digest, or the push was lost

Told by name is an engine whose weights changed between two pushes (its own HTTP API can do that),
and one whose weights a push did not change although others were sent. An engine that says nothing,
was started anew, or fell out of a push and may hold a part of it, is not judged. Started anew is
one that has the label of a start, and is another process than before: the label alone anybody with
the run's key can set. A server that does not say which process it is goes by it all the same. Where
a digest is dear the label alone is compared. Pure.
"""

from collections.abc import Mapping

import torch

from agentrl.errors import HealthError
from agentrl.serving.control import HeldWeights

__all__ = ["UNPUBLISHED", "Seals", "Sent", "dtype_name", "sum_of"]

#: Labels of the weights that an engine starts with: one of ours, and any other of SGLang's.
UNPUBLISHED = ("none", "default")

#: What tells one set of sent weights from another; None where engines would not show each change.
Sent = tuple[int, ...] | None


def sum_of(payload: torch.Tensor) -> int:
    """Tells changed bytes from unchanged ones, on whatever device they lie."""
    words = payload[: payload.nbytes // 4 * 4]
    if words.storage_offset() % 4:  # torch reads words at multiples of their size alone
        words = words.clone()
    return int(words.view(torch.int32).sum(dtype=torch.int64))


def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors, SGLang and our own files write it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


class Seals:
    """What engines held after their last push, by name."""

    def __init__(self) -> None:
        self._seals: dict[str, HeldWeights] = {}
        self._sent: Sent = None

    def check(self, found: Mapping[str, HeldWeights]) -> None:
        """Compare with what engines hold now. Raises HealthError."""
        for name, held in found.items():
            seal = self._seals.get(name)
            if seal is None or _is_same(held, seal) or _is_new(held, seal):
                continue
            raise HealthError(
                f"{name} no longer holds version {seal.label} as it was pushed: its weights are "
                f"others now, or have another label: {held.label} (digest {_shown(held)}, was "
                f"{_shown(seal)}). Somebody with the run's key changed them through its own "
                "HTTP API, or its memory is damaged. Tokens that it sampled since are not of the "
                "learner's weights. Find out who did; then --resume goes on"
            )

    def forget(self, name: str) -> None:
        """An engine fell out of a push: what it holds now is nobody's fault."""
        self._seals.pop(name, None)

    def renew(self, version: int, sent: Sent, found: Mapping[str, HeldWeights]) -> None:
        """Take in what engines hold after the push of `version`. Raises HealthError."""
        before, has_changed = self._seals, None not in (sent, self._sent) and sent != self._sent
        self._seals, self._sent = dict(found), sent
        for name, held in found.items():
            if held.label != str(version):
                raise HealthError(
                    f"{name} calls its weights version {held.label} after a push of version "
                    f"{version}: somebody else pushes to it, or SGLang did not take the label"
                )
            old = before.get(name)
            if has_changed and old is not None and old.digest == held.digest != "":
                raise HealthError(
                    f"{name} still holds the weights of version {old.label}, under the label of "
                    f"version {version}: the push sent others and it kept what it had. Likely "
                    "causes: parameter names that its model does not know, or a quantized model "
                    "that cannot be loaded into again. Compare with --check-weight-update-equal"
                )


def _is_same(held: HeldWeights, seal: HeldWeights) -> bool:
    return (held.label, held.digest) == (seal.label, seal.digest)


def _shown(held: HeldWeights) -> str:
    return held.digest[:12] or "not asked"


def _is_new(held: HeldWeights, seal: HeldWeights) -> bool:
    """Whether the engine was started anew since the push."""
    in_same_process = seal.process != "" and held.process == seal.process
    return held.label in UNPUBLISHED and not in_same_process
