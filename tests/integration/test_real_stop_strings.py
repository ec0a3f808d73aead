"""`--rollout-stop`: a real engine with a tokenizer ends a turn at a string."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.actors.cutting import cut_at_stop
from agentrl.cluster.ports import free_ports
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.launch import engine_command
from agentrl.tokens.formats.load import load_format
from agentrl.types import EngineAddress, Generation, SamplingParams

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
CHAT = load_format("qwen", MODEL)
CONTEXT = 512


async def turn(url: str, *stop: str) -> Generation:
    """A greedy turn after a question."""
    prompt = CHAT.vocab.encode_trusted(
        "<|im_start|>user\ncontinent of Azerbaijan?<|im_end|>\n<|im_start|>assistant\n"
    )
    sampling = SamplingParams(temperature=0.0, max_new_tokens=40, stop=stop)
    async with EngineClient(
        url,
        [EngineAddress("engine", url)],
        vocab_size=CHAT.vocab.size,
        max_context=CONTEXT,
        num_permits=1,
        turn_timeout_s=300.0,
    ) as client:
        return await client.generate(prompt, sampling, routing_key="e", priority=0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    (port,) = free_ports(1)
    spec = engine_command(
        model_path=str(MODEL),
        port=port,
        name="engine",
        device="cpu",
        dtype="float32",
        weight_version="0",
        extra={"max_total_tokens": 4096, "skip_tokenizer_init": False},
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            spec.argv, env=os.environ | spec.env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_an_engine_ends_a_turn_at_a_string(
    engine: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    url, process = engine
    async with EngineControl(EngineAddress("engine", url), timeout_s=300.0) as control:
        await control.wait_ready(1800.0, lambda: process.poll() is None)
    whole = await turn(url)
    text = CHAT.vocab.decode(whole.output_ids)
    stop = text[len(text) // 2 :][:4]
    cut = await turn(url, "never said", stop)
    assert 0 < len(cut.output_ids) < len(whole.output_ids)
    assert cut.finish_reason == "stop"
    assert cut.output_ids == cut_at_stop(CHAT, whole, [stop]).output_ids
    assert stop not in CHAT.vocab.decode(cut.output_ids[:-1])
