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

A layer whose activations are recomputed routes its tokens twice, and takes the same experts both
times. A stage of a pipeline computes other micro-batches in between, but recomputes them in the
order in which it computed them: each router keeps a queue of what it replayed.

    in a step, computed without gradient -> queued -> recomputed, outside of `Replay.replay`
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
    """megatron-core's, in which tokens may be free, and a layer is recomputed with the experts that
    it took. `in_step`: what is computed without gradient will be recomputed."""

    in_step = False

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if self.router_replay_action is RouterReplayAction.RECORD:
            found: tuple[Tensor, Tensor] = super().get_replay_topk(
                scores, topk, num_groups, group_topk, default_compute_topk
            )
            return found
        # For all tokens: to ask whether any is free would make the host wait for the device.
        chosen, free = default_compute_topk(
            scores, topk, num_groups=num_groups, group_topk=group_topk
        )
        if (told := self._told()) is None:
            return chosen, free
        told = told.to(scores.device)
        told = torch.where(told == FREE, free, told)
        return scores.gather(1, told), told

    def _told(self) -> Tensor | None:
        """The experts that are known of the tokens that come now; None: all are free."""
        if self.router_replay_action is None:
            return None
        if self.router_replay_action is RouterReplayAction.REPLAY_BACKWARD:
            again: Tensor | None = self.replay_backward_list.pop(0)
            return again
        told: Tensor | None = self.target_topk_idx
        if self.in_step and not torch.is_grad_enabled():
            self.replay_backward_list.append(told)
        return told


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

    def begin_step(self) -> None:
        """Expect to recompute nothing of an earlier step, which may have failed."""
        for router in self._routers:
            router.clear_indices()

    @contextmanager
    def record(self, batch: MicroBatch, told_L: Tensor | None) -> Iterator[None]:
        """Keep the experts that tokens of `batch` go to meanwhile; `told_L`: the engine's of the
        tokens of this rank, [L, layers with experts, experts of a token]."""
        if self._told is not None:
            self._replay(self._by_router(told_L))
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
        """Send the tokens of `batch` to the experts that are known of them, in a step. Layers are
        recomputed later, outside of this, with the same experts."""
        told = self._by_router(told_L) if self._told is not None else self._kept(batch)
        self._replay(told, in_step=True)
        yield
        self._let(RouterReplayAction.REPLAY_BACKWARD)

    def _by_router(self, told_L: Tensor | None) -> list[Tensor | None]:
        """The engine's; None: nobody was asked, as for tokens of no loss."""
        if told_L is None or self._told is None:
            return [None] * len(self._routers)
        return [told_L[:, self._told.layers.index(layer)] for layer in self._layers]

    def _kept(self, batch: MicroBatch) -> list[Tensor | None]:
        """Those of the pass before, which are forgotten; None: it was not scored."""
        if not self._routers:
            return []
        key = _key(batch)
        if not (kept := self._routes.pop(key, [])):
            return [None] * len(self._routers)
        told = [indices.long() for indices in kept.pop()]
        if kept:  # of another micro-batch of the same tokens
            self._routes[key] = kept
        return [*told]

    def _replay(self, told: list[Tensor | None], *, in_step: bool = False) -> None:
        for router, indices in zip(self._routers, told, strict=True):
            router.target_topk_idx, router.in_step = indices, in_step
        self._let(RouterReplayAction.REPLAY_FORWARD)

    def _let(self, action: RouterReplayAction | None) -> None:
        for router in self._routers:
            router.router_replay_action = action


def _key(batch: MicroBatch) -> bytes:
    return batch.tokens_T.numpy().tobytes() + batch.cu_seqlens.numpy().tobytes()
