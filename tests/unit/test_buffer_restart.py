"""What a buffer that starts again on a run directory keeps of its segments."""

from functools import partial
from pathlib import Path

import anyio

from agentrl.buffer import BufferSettings
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.server import run_buffer
from agentrl.buffer.store import segments_in
from agentrl.columns import TOKEN_BYTES
from tests.unit.buffer_runs import retired_run, trained_run


def restart(folder: Path, keep: int) -> list[int]:
    """Serve a moment on `folder`; the segments that lie there afterwards."""
    address = f"ipc://{folder / 'socket'}"
    settings = BufferSettings(address=address, rollout_batch_size=1, keep_trajectories=keep)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(run_buffer, settings, folder))
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    return segments_in(folder / "payload")


def test_a_restarted_buffer_keeps_what_is_kept_and_still_bounds_it(tmp_path: Path) -> None:
    retired_run(tmp_path, segments=4)
    assert restart(tmp_path, keep=4 * TOKEN_BYTES) == [1, 2, 3, 4]
    assert restart(tmp_path, keep=3 * TOKEN_BYTES - 1) == [3, 4]
    assert restart(tmp_path, keep=4 * TOKEN_BYTES) == [3, 4]
    assert restart(tmp_path, keep=0) == []


def test_a_restarted_buffer_that_keeps_nothing_keeps_what_an_open_group_needs(
    tmp_path: Path,
) -> None:
    trained_run(tmp_path)
    assert restart(tmp_path, keep=0) == [1]


def test_segments_that_are_gone_take_no_room_from_kept_ones_and_give_no_number_away(
    tmp_path: Path,
) -> None:
    retired_run(tmp_path, segments=4)
    (tmp_path / "payload" / "00000004.seg").unlink()
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        state = ledger.load()
    assert max(state.segments) == 4
    assert sorted(state.without_lost_segments([1, 2, 3]).segments) == [1, 2, 3]
    assert restart(tmp_path, keep=2 * TOKEN_BYTES) == [2, 3]
