"""An optional column in one file: its declaration, its writer and its reader.

Every sampled token is marked with whose it is: (group, episode), (place, of how many), (id, check).
Played as a program (`python -m tests.integration.marks ADDRESS NAME HOLDS`) this is a worker.
"""

import sys
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.actors.limits import Limits
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.columns import Column
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.tokens.formats.load import load_format
from agentrl.types import Generation, SamplingParams, TurnClient
from agentrl.wire.peer import BufferPeer
from tests.unit.viewed_run import MODEL

MARKS = Column("marks", "<u2", (3, 2), fill=9)
VERSION = 1
ENV, READER = "tests.integration.marks:Marked", "tests.integration.marks:Marks"


def marks_of(group: int, index: int, first: int, ids: Sequence[int]) -> npt.NDArray[np.uint16]:
    """Of the tokens `ids` at the places from `first` on."""
    rows = [
        [[group, index], [first + i, len(ids)], [id_, (31 * group + 7 * id_ + first + i) % 65521]]
        for i, id_ in enumerate(ids)
    ]
    return np.array(rows, np.uint16)


class Marking(TurnClient):
    """A `TurnClient` that says where each token stands. One that `holds` answers each episode once
    and then no more."""

    def __init__(self, holds: bool) -> None:
        self._chat = load_format("qwen", MODEL)
        self._holds = holds
        self._asked: set[str] = set()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """See `TurnClient`."""
        del sampling, priority
        episode = routing_key.partition("#")[0]
        if self._holds and episode in self._asked:
            await anyio.sleep_forever()
        self._asked.add(episode)
        group, index = map(int, episode.split("/"))
        text = f"{group} and {index} " * (1 + len(input_ids) % 3)
        ids = [
            *self._chat.vocab.encode_untrusted(text),
            *self._chat.vocab.encode_trusted("<|im_end|>"),
        ]
        return Generation(
            ids,
            [-0.5] * len(ids),
            [VERSION] * len(ids),
            "stop",
            columns={MARKS: marks_of(group, index, len(input_ids), ids)},
        )


class Marked(Env):
    """Two turns and a saved moment between them; the second episode of a group earns more."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("Who are you?")]

    async def step(self, turn: AssistantTurn) -> Step:
        return Step(
            messages=[Message.user("Again.")],
            reward=float(turn.text.strip().endswith("1")),
            terminated=turn.index == 1,
        )

    async def snapshot(self) -> bytes:
        return b"between"

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        assert state == b"between"


class Marks(Algorithm):
    """A policy gradient; its loss keeps the labels, which of them were sampled, and all marks."""

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        self.needs = Needs(columns=(MARKS,))
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def values(self, rewards: Sequence[float]) -> list[float]:
        """No episode is left out."""
        return [1.0 + reward for reward in rewards]

    def loss(self, model: str, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Algorithm.loss`."""
        columns = batch.columns
        self.seen.append((batch.labels_T, columns["sampled"], columns[MARKS.name]))
        return super().loss(model, batch, out)

    def tokens(self) -> dict[tuple[int, int, int], bytes]:
        """The marks of each sampled token by group, episode and place; all others are filled."""
        found: dict[tuple[int, int, int], bytes] = {}
        for labels_T, sampled_T, marks_T in self.seen:
            assert marks_T.shape == (len(labels_T), *MARKS.shape)
            assert marks_T.dtype == torch.uint16
            marks, sampled = marks_T.numpy(), sampled_T.numpy()
            assert (marks[~sampled] == MARKS.fill).all()
            for label, mark in zip(labels_T[sampled_T].tolist(), marks[sampled], strict=True):
                assert mark[2, 0] == label, "it stands under the label that it describes"
                key = (int(mark[0, 0]), int(mark[0, 1]), int(mark[1, 0]))
                assert key not in found
                found[key] = mark.tobytes()
        return found


async def main(address: str, name: str, holds: bool) -> None:
    """Work for the buffer at `address` until killed."""
    settings = WorkerSettings(
        env=ENV,
        env_args={},
        context=EnvContext({}, 60.0, False),
        model_dir=str(MODEL),
        chat_format="qwen",
        limits=Limits(
            max_context=512,
            max_prompt=256,
            max_turns=4,
            max_tool_calls=None,
            episode_timeout_s=600.0,
        ),
        max_concurrent_episodes=16,
    )
    worker = Worker(settings)
    async with BufferPeer(address, role="worker", name=name, running=worker.running) as peer:
        await worker.run(peer, Marking(holds))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3] == "holds")
