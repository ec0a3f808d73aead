"""An episode that has just been played here, as plain text: what was said, and how it ended."""

from typing import TextIO

import numpy as np

from agentrl.actors.report import PlayedEpisode
from agentrl.tokens.vocab import Vocab
from agentrl.types import COLUMNS
from agentrl.view.episodes import Trajectory
from agentrl.view.text import conversation
from agentrl.visible import visible

__all__ = ["print_played"]


def print_played(stream: TextIO, played: PlayedEpisode, vocab: Vocab) -> None:
    """Write the conversations and the end of an episode to `stream`."""
    report = played.report
    for number, meta in enumerate(report.trajectories):
        own = played.columns[number * len(COLUMNS) : (number + 1) * len(COLUMNS)]
        columns = {
            name: np.asarray(column, dtype)
            for (name, dtype), column in zip(COLUMNS.items(), own, strict=True)
        }
        for line, _ in conversation(Trajectory(meta, columns, None), vocab):
            stream.write(f"{line}\n")
    what = visible(report.error) if report.error else f"reward {report.reward:g}"
    stream.write(f"{report.outcome}, stopped by {report.stop_reason}: {what}\n")
