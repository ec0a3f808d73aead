"""`--custom-convert-samples-to-train-data-path`: a function of the user's makes the samples of a
lease into the data of an iteration.

    source rank:  fetch the lease -> samples -> fn(args, samples) -> `Conversion`
    every rank:   the same `Conversion`, by broadcast -> rewards, plan, masks

It is called once for each lease, before it is planned, with a sample for each trajectory
(`envs/slime_logs`), as slime calls it. Nothing is forged: of its answer, rewards, loss masks and
which samples are there are read back (`agentrl.learner.conversion_answer`); tokens, lengths and
log-probabilities must be those that it was given. A sample whose payload is damaged is not given,
and is counted as in other runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.overlong import shaped_lease
from agentrl.columns import COLUMNS, EXCLUDED
from agentrl.config.run import RunConfig
from agentrl.envs.slime_logs.process import decoder
from agentrl.envs.slime_logs.samples import samples_of_groups
from agentrl.learner.backend import Models
from agentrl.learner.collective_errors import by_source
from agentrl.learner.conversion_answer import (
    Conversion,
    Given,
    conversion_of,
    unpacked,
    unread_keys,
)
from agentrl.learner.hooks import CONVERT, LearnerHooks
from agentrl.learner.rows import FetchRows, Trajectory
from agentrl.types import EpisodeId, LeaseHeader, PayloadRef

__all__ = ["ConvertedLease", "converted_lease"]


@dataclass(frozen=True, slots=True)
class ConvertedLease:
    """A lease as it is trained. header: with the rewards that its episodes have. left_out: episodes
    that are counted and not trained. kept: of trajectories that tokens were taken out of, which are
    left, bool under each label."""

    header: LeaseHeader
    left_out: frozenset[EpisodeId] = frozenset()
    kept: Mapping[PayloadRef, npt.NDArray[np.bool_]] = field(default_factory=dict)


def converted_lease(
    hooks: LearnerHooks,
    cfg: RunConfig,
    header: LeaseHeader,
    removed: frozenset[EpisodeId],
    fetch: FetchRows,
    backend: Models,
) -> ConvertedLease:
    """The lease as the function left it; as it is, with the penalties for length, in a run that
    names none. `removed`: episodes whose samples have `remove_sample` set. `fetch`: for this rank
    alone. Collective. Raises HookError, and on all ranks what `fetch` raises on the source."""
    lease = shaped_lease(cfg, header)
    if CONVERT not in hooks:
        return ConvertedLease(lease)

    def convert() -> Conversion:
        given = _given(cfg, lease, removed, fetch)
        samples = [each.sample for each in given]

        def read(answer: Any) -> Conversion:
            found = conversion_of(answer, given, partial(hooks.fault, CONVERT))
            if names := ", ".join(unread_keys(answer)):
                hooks.note(f"{hooks.said(CONVERT)}: nothing reads what it returned as {names}")
            return found

        found: Conversion = hooks.call_here(CONVERT, samples, read=read)
        return found

    return _applied(by_source(backend, convert, Conversion), lease)


def _given(
    cfg: RunConfig, lease: LeaseHeader, removed: frozenset[EpisodeId], fetch: FetchRows
) -> list[Given]:
    """A sample for each trajectory of the lease whose payload is whole."""
    rows = [row for group in lease.groups for row in group.trajectories]
    fetched = fetch(rows, [EXCLUDED])
    lost = {row.payload for row, found in zip(rows, fetched, strict=True) if found is None}
    trajectories = [found for found in fetched if found is not None]
    groups = [
        msgspec.structs.replace(
            group, trajectories=[row for row in group.trajectories if row.payload not in lost]
        )
        for group in lease.groups
    ]
    samples = samples_of_groups(groups, map(_columns, trajectories), cfg, decoder(cfg))
    for sample, trajectory in zip(samples, trajectories, strict=True):
        sample.remove_sample = trajectory.row.episode in removed
    return [Given.of(*pair) for pair in zip(samples, trajectories, strict=True)]


def _columns(trajectory: Trajectory) -> dict[str, npt.NDArray[Any]]:
    own = {name: getattr(trajectory, f"{name}_L") for name in COLUMNS}
    return own | {column.name: items for column, items in trajectory.optional.items()}


def _applied(found: Conversion, lease: LeaseHeader) -> ConvertedLease:
    """The lease with what the function says of it. Episodes of which it says nothing keep their
    reward."""
    told = dict(found.rewards)
    groups = []
    for group in lease.groups:
        pairs = zip(group.episodes, group.rewards, strict=True)
        rewards = [told.get(episode, reward) for episode, reward in pairs]
        groups.append(msgspec.structs.replace(group, rewards=rewards))
    lengths = {
        row.payload: row.meta.num_tokens for group in lease.groups for row in group.trajectories
    }
    kept = {payload: _under_labels(bits, lengths[payload]) for payload, bits in found.masks}
    header = msgspec.structs.replace(lease, groups=groups)
    return ConvertedLease(header, frozenset(found.left_out), kept)


def _under_labels(response: tuple[int, bytes], length: int) -> npt.NDArray[np.bool_]:
    """Of a trajectory of L tokens: true but where the mask of its response is 0."""
    num, bits = response
    kept_L = np.ones(length, dtype=np.bool_)
    kept_L[length - 1 - num : length - 1] = unpacked(num, bits)
    return kept_L
