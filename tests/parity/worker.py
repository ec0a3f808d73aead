"""One learner rank of a test: `worker.py RANK FILE`. Plays each job of the file on a backend of
its own."""

import importlib.util
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend


def main(rank: int, jobs: list[dict[str, Any]]) -> None:
    fixtures = _fixtures()
    for job in jobs:
        cfg = RunConfig(**job["config"])
        backend = MegatronBackend(
            cfg,
            Path(job["model_dir"]),
            rank=rank,
            world_size=cfg.num_learner_ranks,
            master_address="127.0.0.1",
            master_port=_agreed_port(job["target"], rank),
            num_training_steps=None,
            models=job.get("models", ()),
        )
        if "script" in job:
            fixtures.follow(backend, job["script"])
        else:
            fixtures.play(backend, Path(job["target"]))
        backend.close()


def _fixtures() -> Any:
    spec = importlib.util.spec_from_file_location(
        "fixtures", Path(__file__).with_name("conftest.py")
    )
    assert spec is not None
    assert spec.loader is not None
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    return fixtures


def _agreed_port(target: str, rank: int) -> int:
    """A port chosen just before it is used: one reserved earlier may have gone to a collective's
    own connection meanwhile."""
    path = Path(f"{target}.port")
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        path.with_suffix(".new").write_text(str(port))
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
