"""Routing replay: a step sends tokens to the experts that were chosen for them before.

Weights move between the pass that gives `prox` and a later step of an iteration, and more between
engine and learner; a token whose experts change with them has another log-probability for no reason
of its own. So a step takes experts that are known, and computes their weights anew: routers keep
their gradient. Known are, by what is asked for,

    the engine's        as the column of `Routes` brings them with a trajectory, for every pass and
                        step; a token without any is routed freely
    the last pass's     of this rank's own model, for the steps after it; a step whose micro-batch
                        was not scored before routes freely

Those of a pass lie as the tokens of this rank do, which the micro-batch and the layout decide
alone. One that was replayed is forgotten, and a new pass forgets all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch
from agentrl.models.routes import Routes

__all__ = ["FREE", "Replay"]

#: In the place of an expert: the router chooses those of this token.
FREE = -1


class _PartialReplay(RouterReplay):  # type: ignore[misc]
    """megatron-core's, in which tokens may be free."""

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if self.router_replay_action is not RouterReplayAction.REPLAY_FORWARD:
            found: tuple[Tensor, Tensor] = super().get_replay_topk(
                scores, topk, num_groups, group_topk, default_compute_topk
            )
            return found
        told = self.target_topk_idx.to(scores.device)
        # For all tokens: to ask whether any is free would make the host wait for the device.
        _, free = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        told = torch.where(told == FREE, free, told)
        return scores.gather(1, told), told


class Replay:
    """The routes of one model on this rank: none is kept where its routers do not replay, and none
    of layers of multi-token prediction, which no pass goes through before a step.
    `routes`: where the engine's stand; None: those of the last pass are replayed."""

    def __init__(self, model: Any, routes: Routes | None = None) -> None:
        self._routers: list[_PartialReplay] = []
        self._layers: list[int] = []
        for module in model.decoder.modules():
            if getattr(module, "router_replay", None) is not None:
                module.router_replay = _PartialReplay()
                self._routers.append(module.router_replay)
                self._layers.append(module.layer_number - 1)
        self._told = routes
        self._routes: dict[bytes, list[list[Tensor]]] = {}
        # megatron-core lists the routers of every model that was built, for ever.
        RouterReplay.clear_global_router_replay_instances()

    def forget(self) -> None:
        """Keep nothing of earlier passes."""
        self._routes.clear()

    @contextmanager
    def record(self, batch: MicroBatch, told_L: Tensor | None) -> Iterator[None]:
        """Keep the experts that tokens of `batch` go to meanwhile; `told_L`: the engine's of the
        tokens of this rank, [L, layers with experts, experts of a token]."""
        if self._told is not None:
            self._take(told_L)
            yield
            return
        self._let(RouterReplayAction.RECORD)
        yield
        if self._routers:
            chosen = (router.get_recorded_indices() for router in self._routers)
            kept = [indices.to("cpu", torch.int16) for indices in chosen if indices is not None]
            self._routes.setdefault(_key(batch), []).append(kept)
        self._let(None)

    @contextmanager
    def replay(self, batch: MicroBatch, told_L: Tensor | None) -> Iterator[None]:
        """Send the tokens of `batch` to the experts that are known of them, until the next one
        comes in: its activations may be recomputed until then."""
        if self._told is not None:
            self._take(told_L)
            yield
            return
        kept = self._routes.pop(key := _key(batch), [])
        self._let(RouterReplayAction.REPLAY_FORWARD if kept else None)
        for router, indices in zip(self._routers, kept.pop(), strict=True) if kept else ():
            router.target_topk_idx = indices.long()
        if kept:  # of another micro-batch of the same tokens
            self._routes[key] = kept
        yield

    def _take(self, told_L: Tensor | None) -> None:
        """The engine's; None: nobody was asked, as for tokens of no loss."""
        self._let(None if told_L is None else RouterReplayAction.REPLAY_FORWARD)
        if told_L is not None and self._told is not None:
            for router, layer in zip(self._routers, self._layers, strict=True):
                router.target_topk_idx = told_L[:, self._told.layers.index(layer)]

    def _let(self, action: RouterReplayAction | None) -> None:
        for router in self._routers:
            router.router_replay_action = action


def _key(batch: MicroBatch) -> bytes:
    return batch.tokens_T.numpy().tobytes() + batch.cu_seqlens.numpy().tobytes()
