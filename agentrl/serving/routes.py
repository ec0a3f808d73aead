"""The experts that engines sent tokens to, from an engine's answer to the column of a trajectory.

SGLang answers with one row for each token that was fed: all but the last that was sampled. The
router between client and engine passes on no wish for them, so engines that know them tell them
with every answer (`--enable-return-routed-experts`).

The column stands, as all do, under the label: a token has the experts of the token before it, the
last one that was fed to sample it. The first token of a trajectory has none.
"""

import base64
import binascii
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import EngineError
from agentrl.models.routes import Routes

__all__ = ["read_routes", "register_routes"]


def read_routes(
    answered: str | None, num_fed: int, versions: Sequence[int], routes: Routes, turn: str
) -> npt.NDArray[Any]:
    """Items of the column for the last `num_fed` tokens of a turn. Its sampled tokens are of
    `versions`: those of weights before the last ones have no experts, for the engine knows how it
    fed them again under its last weights, not how it did then.

    Raises EngineError where the answer is not `num_fed` rows of experts that the model has, each
    once for a token."""
    column = routes.column
    try:
        found = np.frombuffer(base64.b64decode(answered or "", validate=True), "<i4")
    except (binascii.Error, ValueError) as error:
        raise EngineError(f"{turn}: its routed experts cannot be read: {error}") from error
    wanted = (num_fed, routes.num_layers, column.shape[-1])
    if found.size != np.prod(wanted):
        raise EngineError(
            f"{turn}: {found.size} routed experts do not match {num_fed} tokens that were fed, "
            f"{routes.num_layers} layers and {column.shape[-1]} experts of each"
        )
    experts = found.reshape(wanted)[:, routes.layers]
    if experts.size and not 0 <= experts.min() <= experts.max() < routes.num_experts:
        raise EngineError(
            f"{turn}: its routed experts go from {experts.min()} to {experts.max()}, and the model "
            f"has {routes.num_experts}, counted from 0"
        )
    items = experts.astype(column.dtype)
    _require_different(items, turn)
    if versions and versions[0] != versions[-1]:
        was_fed_again = np.asarray(versions) != versions[-1]
        items[-len(versions) :][was_fed_again] = column.fill
    return items


def _require_different(items: npt.NDArray[Any], turn: str) -> None:
    for one, other in combinations(range(items.shape[-1]), 2):
        if (same := items[..., one] == items[..., other]).any():
            token, layer = np.argwhere(same)[0]
            raise EngineError(
                f"{turn}: token {token} was sent twice to expert {items[token, layer, one]} in "
                f"layer {layer} of those with experts"
            )


def register_routes(*, on_cpu: bool) -> None:
    """Have this engine tell the experts of every request, when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    request = "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments"
    HookRegistry.register(request, _ask, HookType.BEFORE)
    if on_cpu:  # the host's memory is the device's: there is nothing to pin
        pin = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"
        HookRegistry.register(pin, _pin_nothing, HookType.REPLACE)


def _ask(request: Any, *args: Any, **kwargs: Any) -> None:
    request.return_routed_experts = True


def _pin_nothing(*args: Any, **kwargs: Any) -> None:
    pass
