"""What agentrl's writers call durable is: their system calls are recorded, and when they gave their
word. Played daily, for seconds; `test_power.py` plays a whole run."""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.power.disk import Disk
from tests.faults.power.recording import environment, read

#: Each word is said when what stands before it has returned.
MOUTH = """
import socket, sys
from pathlib import Path

mouth, _ear = socket.socketpair()
mouth.setblocking(False)
root = Path(sys.argv[1])
"""
GROUND = """
from agentrl import disk

disk.make_folder(root / "a" / "b")
mouth.send(b"a/b")
with disk.create_file(root / "a" / "grows") as file:
    for _ in range(3):
        file.write(b"more")
        disk.sync_file(file)
        mouth.send(b"a/grows")
for text in (b"old", b"new"):
    disk.replace_file(root / "a" / "replaced", text)
    mouth.send(b"a/replaced")
disk.write_file(root / "a" / "b" / "written", b"x")
(root / "a" / "b" / "foreign").write_bytes(b"x")
disk.sync_tree(root / "a" / "b")
disk.rename(root / "a" / "b", root / "a" / "c")
mouth.send(b"a/c")
"""
BUFFER = """
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import Mark
from agentrl.buffer.store import PayloadStore

with (
    PayloadStore(root / "payload", segment_bytes=100, first=1) as store,
    Ledger(root / "ledger.db") as ledger,
):
    for number in range(5):
        store.append([bytes(40)])
        store.sync()
        mouth.send(b"payload")
        ledger.commit([Mark("number", number)])
        mouth.send(b"ledger.db-wal")
"""


def check(program: str, recorder: Path, folder: Path) -> list[str]:
    """The names of what was called durable, each of which is."""
    root, log = folder.resolve() / "disk", folder / "log"
    root.mkdir()
    subprocess.run(
        [sys.executable, "-c", MOUTH + program, str(root)],
        env=os.environ | environment(recorder, root, log),
        check=True,
        timeout=500,
    )
    disk, said = Disk(root), []
    for record in read(log):
        disk.apply(record)
        if record.op == "S":
            path = root / record.data.decode()
            said.append(path.name)
            assert disk.is_durable(path)
            assert disk.is_named(path)
    paths = [path for path in root.rglob("*") if path.is_file()]
    assert disk.files() == {str(path.relative_to(root)): path.read_bytes() for path in paths}
    return said


def test_what_the_ground_calls_durable_is(recorder: Path, tmp_path: Path) -> None:
    said = check(GROUND, recorder, tmp_path)
    assert said == ["b", "grows", "grows", "grows", "replaced", "replaced", "c"]


def test_payloads_that_were_synced_and_rows_that_were_committed_are_durable(
    recorder: Path, tmp_path: Path
) -> None:
    assert check(BUFFER, recorder, tmp_path) == ["payload", "ledger.db-wal"] * 5
