"""Runs on the real stack whose engine somebody else started, and goes on using afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from agentrl.cluster.ports import free_ports
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.key import make_key
from agentrl.serving.launch import engine_command
from agentrl.types import EngineAddress, Generation, SamplingParams
from tests.engines import CALL_S, START_DEADLINE_S, Process

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
KEY = "a key of theirs"


class Server(NamedTuple):
    engine: EngineAddress
    process: Process

    @property
    def address(self) -> str:
        return self.engine.url.removeprefix("http://")

    def control(self) -> EngineControl:
        return EngineControl(self.engine, timeout_s=CALL_S, key=KEY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("theirs")
    (port,) = free_ports(1)
    make_key(folder / "key", KEY)
    spec = engine_command(
        model_path=MODEL,
        port=port,
        name="theirs",
        device="cpu",
        dtype="float32",
        extra={"max_total_tokens": 16384},
        weight_version="default",
        key_file=str(folder / "key"),
    )
    served = Server(
        EngineAddress("theirs", f"http://127.0.0.1:{port}"), Process(spec, folder / "log")
    )

    async def ready() -> None:
        async with served.control() as control:
            await control.wait_ready(START_DEADLINE_S, served.process.alive)

    try:
        anyio.run(ready)
        yield served
    finally:
        served.process.kill_group()


def trained(place: Path, *flags: str) -> str:
    """What a run of two iterations says."""
    few = '{"question": "continent of Azerbaijan?", "answer": "Asia"}\n'
    (place / "few.jsonl").write_text(few)
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", DEFAULT,
        "--num-rollout", "2", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4",
        "--skip-eval-before-train", "--eval-prompt-data", "few", "few.jsonl",
        "--check-weight-update-equal", "--run-dir", ".", "--run-id", "run", *flags,
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1", "THEIR_KEY": KEY}
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


async def asked(server: Server) -> tuple[str, bool, Generation]:
    """The label of its weights, whether it takes turns, and a turn."""
    sampling = SamplingParams(temperature=0.0, max_new_tokens=4)
    client = EngineClient(
        server.engine.url,
        [server.engine],
        vocab_size=2000,
        max_context=512,
        num_permits=1,
        turn_timeout_s=CALL_S,
        key=KEY,
    )
    async with server.control() as control, client:
        turn = await client.generate([5, 6, 7], sampling, routing_key="a", priority=0)
        return await control.weight_version(), await control.takes_turns(), turn


def assert_left_running(server: Server, place: Path) -> None:
    """With the weights of the last push, which was compared tensor by tensor."""
    assert server.process.alive()
    label, takes_turns, turn = anyio.run(asked, server)
    assert label == "2"
    assert takes_turns
    assert turn.versions == [2] * len(turn.output_ids)
    assert not (place / "run" / "logs" / "engine-0.log").exists()
    for path in (place / "run").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_run_joins_a_server_and_leaves_it_running(server: Server, tmp_path: Path) -> None:
    """`--check-weight-update-equal` ends a run whose engines hold anything else."""
    key = ("--rollout-external-api-key-var", "THEIR_KEY")
    said = trained(tmp_path, "--rollout-external-engine-addrs", server.address, *key)
    assert "engine-0" not in next(line for line in said.splitlines() if "started " in line)
    assert_left_running(server, tmp_path)


def test_a_second_run_gives_it_weights_by_files(server: Server, tmp_path: Path) -> None:
    """It still has those of the first, under a number that is no version of this run."""
    trained(
        tmp_path,
        *("--rollout-external-engine-addrs", server.address),
        *("--rollout-external-api-key-var", "THEIR_KEY"),
        *("--update-weight-transport", "disk", "--update-weight-disk-dir", "shared"),
    )
    assert_left_running(server, tmp_path)
