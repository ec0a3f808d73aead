"""`EventFile`: TensorBoard's own event files; the only importer of tensorboard.

Neither torch nor tensorflow is needed: records and protocol buffers are tensorboard's.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from agentrl.disk import make_folder, narrow

__all__ = ["EventFile"]


class EventFile:
    """A new event file in `directory`; each `write` is flushed. `help` says what a name means:
    TensorBoard shows it with the curve."""

    def __init__(self, directory: Path, help: Callable[[str], str] = lambda _: "") -> None:
        make_folder(directory)
        self._writer = EventFileWriter(str(directory))
        self._help = help
        self._described: set[str] = set()
        for file in directory.iterdir():
            narrow(file)

    def write(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ) -> None:
        """Histograms are (edges, counts). Raises ValueError when the two do not fit."""
        values = [
            Summary.Value(tag=name, simple_value=value, metadata=self._metadata(name))
            for name, value in scalars.items()
        ]
        values += [
            Summary.Value(tag=name, histo=_histogram(name, *histogram))
            for name, histogram in histograms.items()
        ]
        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def _metadata(self, name: str) -> SummaryMetadata | None:
        """What is said with the first value of a curve."""
        if name in self._described:
            return None
        self._described.add(name)
        return SummaryMetadata(
            summary_description=self._help(name),
            plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"),
        )

    def close(self, exit_code: int = 0) -> None:
        """Flush and close."""
        self._writer.close()


def _histogram(name: str, edges: Sequence[float], counts: Sequence[float]) -> HistogramProto:
    """TensorBoard wants upper edges and moments; the moments are those of the bucket centres."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{name}: {len(edges)} edges for {len(counts)} buckets, one more needed")
    centres = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    pairs = list(zip(centres, counts, strict=True))
    return HistogramProto(
        min=edges[0],
        max=edges[-1],
        num=sum(counts),
        sum=sum(centre * count for centre, count in pairs),
        sum_squares=sum(centre * centre * count for centre, count in pairs),
        bucket_limit=edges[1:],
        bucket=counts,
    )
