"""One worker process with 5,000 episodes that all wait for a tool: what they cost it.

The worker, its peer and its engine client are those of a run. A scripted engine answers every first
turn with a call of the tool and every second one with an answer; a scripted buffer assigns the
episodes and notes when it hears from the worker. All tools wait for one event. When it is set,
every episode must end and be reported: none was lost, none only seemed to be there.

`bytes_per_episode` is resident memory when all wait, less that before the first began, by episode.
`loop_lag_ms` is how late the worker's event loop was while all waited, at the 99.9th percentile
over looks 10 ms apart. A heartbeat is missed for each beat, beyond the first, in which the buffer
heard nothing, from the first assignment on.
"""

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from agentrl.tokens.formats.load import load_format
from agentrl.types import Outcome
from agentrl.wire.transport import RouterSocket
from benchmarks import Row, report
from benchmarks.scripted import BEAT_S, ScriptedBuffer, ScriptedEngine, reply
from benchmarks.stand import child, quantile
from benchmarks.waiting import MODEL, Watched, work

#: Episodes that warm up.
WARMUP = 64
CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call><|im_end|>'
ANSWER = "42<|im_end|>"


class Held(msgspec.Struct, frozen=True):
    """`done`: episodes that ended as they should; `heard`: moments of the worker's messages, and
    `hellos` of those that say hello."""

    done: int
    heard: list[float]
    hellos: list[float]
    watched: Watched


async def hold(num: int, hold_s: float, folder: Path) -> Held:
    """Have a worker process hold `num` episodes for `hold_s` seconds."""
    vocab = load_format("qwen", MODEL).vocab
    engine = ScriptedEngine([reply(vocab.encode_trusted(text)) for text in (CALL, ANSWER)])
    async with RouterSocket(f"ipc://{folder}/b.sock") as router, anyio.create_task_group() as group:
        buffer = ScriptedBuffer(router)
        await group.start(engine.serve)
        group.start_soon(buffer.serve)
        with child(work, router.address, engine.url, num, hold_s) as (_, told):
            await buffer.until(lambda: bool(buffer.hellos))
            buffer.assign("00000001", WARMUP, {"pass": True})
            await buffer.until(lambda: len(buffer.ended) == WARMUP)
            buffer.assign("00000002", num, {})
            found = await anyio.to_thread.run_sync(told.recv_bytes)
            await buffer.until(lambda: len(buffer.ended) == WARMUP + num)
            told.send_bytes(b"end")
        group.cancel_scope.cancel()
    watched = msgspec.json.decode(found, type=Watched)
    done = sum(outcome is Outcome.DONE for outcome in buffer.ended.values())
    return Held(done - WARMUP, buffer.heard, buffer.hellos, watched)


def missed_beats(heard: Sequence[float], began: float, ended: float) -> int:
    """Whole beats of silence, beyond the first of each, from `began` to `ended`."""
    moments = [began, *(moment for moment in heard if began < moment < ended), ended]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    return sum(max(0, int(gap / BEAT_S) - 1) for gap in gaps)


def rows_of(num: int, held: Held) -> list[Row]:
    """Raises RuntimeError when an episode was lost: what was measured did not hold it."""
    if held.done != num:
        raise RuntimeError(f"{held.done} of {num} episodes were done: the others were not held")
    watched = held.watched
    each = (watched.bytes_after - watched.bytes_before) / num
    missed = missed_beats(held.heard, watched.began, watched.released)
    rejoins = sum(watched.began < moment < watched.released for moment in held.hellos)
    return [
        Row("episodes", num, "episodes", ">= 5000"),
        Row("bytes_per_episode", round(each), "bytes", "< 60000"),
        Row("loop_lag_ms", round(1000 * quantile(watched.holding_lag, 0.999), 2), "ms", "< 50"),
        Row("missed_heartbeats", missed, "beats", "0"),
        Row("rejoins", rejoins, "hellos", "0"),
        Row("loop_lag_max_ms", round(1000 * max(watched.holding_lag), 2), "ms"),
        Row("starting_lag_ms", round(1000 * quantile(watched.starting_lag, 0.999), 2), "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=5000, help="episodes at once")
    parser.add_argument("--hold-s", type=float, default=60.0, help="seconds that all wait")
    given = parser.parse_args()
    if given.episodes < 1 or given.hold_s < 1:
        parser.error(f"--episodes {given.episodes} and --hold-s {given.hold_s:g}: at least 1 each")
    with tempfile.TemporaryDirectory() as folder:
        held = anyio.run(hold, given.episodes, given.hold_s, Path(folder))
    report("idle_episodes", rows_of(given.episodes, held))


if __name__ == "__main__":
    main()
