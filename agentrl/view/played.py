"""An episode that has just been played here, as plain text: what was said, and how it ended."""

from typing import TextIO

from agentrl.actors.report import PlayedEpisode
from agentrl.columns import dealt
from agentrl.tokens.vocab import Vocab
from agentrl.types import Outcome
from agentrl.view.episodes import TrajectoryView
from agentrl.view.text import conversation
from agentrl.visible import visible
from agentrl.wire.arrays import as_arrays

__all__ = ["print_played"]


def print_played(stream: TextIO, played: PlayedEpisode, vocab: Vocab) -> None:
    """Write the conversations and the end of an episode to `stream`."""
    report = played.report
    each = dealt(report.layouts, played.columns)
    for meta, own in zip(report.trajectories, each, strict=True):
        columns = as_arrays(meta.layout, meta.num_tokens, own)
        for line, _ in conversation(TrajectoryView(meta, columns, None), vocab):
            stream.write(f"{line}\n")
    reward = f"reward {report.reward:g}" if report.outcome is Outcome.DONE else "no reward"
    what = visible(report.error) if report.error else reward
    stream.write(f"{report.outcome}, stopped by {report.stop_reason}: {what}\n")
