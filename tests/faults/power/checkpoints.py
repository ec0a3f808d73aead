"""A recorded process that writes checkpoints: the production writer, over the toy state of
`checkpoint_ranks` or over Megatron's, whose model it exports too."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.faults.power.recording import Record, environment, read

__all__ = ["NUM_SAVED", "Written", "written"]

NUM_SAVED = 3
_TREE = Path(__file__).resolve().parents[3]
_MODEL = _TREE / "agentrl" / "envs" / "search_r1" / "model"

#: What is said on a socket stands in the record where it was said.
_WRITER = """
import socket, sys
from pathlib import Path
from agentrl.learner.checkpointing import CheckpointWriter

root, kind, port, model, num_saved = Path(sys.argv[1]), *sys.argv[2:]
mouth, _ear = socket.socketpair()
mouth.setblocking(False)
if kind == "megatron":
    from agentrl.config.run import RunConfig
    from agentrl.learner.megatron import MegatronBackend
    backend = MegatronBackend(
        RunConfig(actor_num_gpus_per_node=1, lr=1e-3), Path(model), rank=0, world_size=1,
        master_address="127.0.0.1", master_port=int(port), num_training_steps=1,
    )
    (root / "alone").mkdir()
    backend.save_state(root / "alone")
    mouth.send(b"state")
else:
    from tests.unit.checkpoint_ranks import Backend
    backend = Backend()
writer = CheckpointWriter(root / "recovery", backend, run_id="run", keep=2)
writer.begin(None)
for number in range(1, int(num_saved) + 1):
    if kind == "toy":
        backend.weights = b"weights of %d" % number * 1000
    writer.save(number, version=number)
    mouth.send(b"saved")
if kind == "megatron":
    for _ in range(2):
        backend.save_hf(root / "hf")
        mouth.send(b"exported")
    backend.close()
"""


class Written(msgspec.Struct, frozen=True):
    """Where it wrote, and what happened to its disk; its words stand among that."""

    root: Path
    records: list[Record]

    def said(self, word: bytes) -> list[int]:
        """The records with which it said this."""
        return [i for i, r in enumerate(self.records) if r.op == "S" and r.data == word]


def written(folder: Path, library: Path, kind: str, port: int) -> Written:
    """Let a process write `NUM_SAVED` checkpoints of which it keeps two."""
    root, log = folder / "disk", folder / "log"
    root.mkdir()
    command = [sys.executable, "-c", _WRITER, str(root), kind, str(port), str(_MODEL)]
    env = environment(library, root, log)
    subprocess.run(
        [*command, str(NUM_SAVED)], env=os.environ | env, cwd=_TREE, check=True, timeout=500
    )
    return Written(root, read(log))
