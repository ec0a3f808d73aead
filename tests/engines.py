"""Real SGLang engines behind the real router, for tests that push to them and sample from them. The
model is a tiny random Qwen3 whose vocabulary needs padding and whose embeddings are tied."""

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.cluster.ports import free_ports
from agentrl.config.device import Device
from agentrl.errors import EngineError
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.key import make_key, read_key
from agentrl.serving.launch import ProcessSpec, engine_command, router_command
from agentrl.serving.router_control import RouterControl
from agentrl.types import EngineAddress, Generation, SamplingParams

__all__ = [
    "CALL_S",
    "MAX_CONTEXT",
    "START_DEADLINE_S",
    "VOCAB_SIZE",
    "Process",
    "Stack",
    "Weights",
    "client_to",
    "engine_process",
    "make_model",
    "open_stack",
    "turns_beside",
    "wait_ready",
    "weights_of",
]

VOCAB_SIZE, MAX_CONTEXT = 500, 1024
#: Generous: other work may have the machine.
START_DEADLINE_S, CALL_S = 1800, 300
Weights = dict[str, torch.Tensor]


class Process:
    """A process of the stack in its own group, so that all of it can be killed."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                spec.argv,
                env={**os.environ, **spec.env},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self.popen.poll() is None

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(CALL_S)


class Stack(NamedTuple):
    engines: list[EngineAddress]
    router: str
    folder: Path

    @property
    def key(self) -> str | None:
        return read_key(str(self.folder / "engine.key"))


def make_model(seed: int, width: int = 16) -> Qwen3ForCausalLM:
    """With heads of `width`."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=4 * width,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=None,  # turns are as long as a test says
        bos_token_id=0,
        pad_token_id=0,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).to(torch.float32).eval()


def weights_of(seed: int, width: int = 16) -> Weights:
    named = make_model(seed, width).named_parameters()
    return {name: tensor.detach() for name, tensor in named}


@contextmanager
def engine_process(
    name: str, folder: Path, device: Device = "cpu", **settings: Any
) -> Iterator[tuple[EngineAddress, Process]]:
    """An engine of `folder`/model with the key of `folder`; it is not ready yet."""
    (port,) = free_ports(1)
    spec = engine_command(
        model_path=str(folder / "model"),
        port=port,
        name=name,
        device=device,
        dtype="float32" if device == "cpu" else "bfloat16",
        extra={"max_total_tokens": 16384, **settings},
        key_file=str(folder / "engine.key"),
    )
    process = Process(spec, folder / f"{name}.log")
    try:
        yield EngineAddress(name, f"http://127.0.0.1:{port}"), process
    finally:
        process.kill_group()


async def wait_ready(engine: EngineAddress, process: Process) -> None:
    async with EngineControl(engine, timeout_s=CALL_S) as control:  # this needs no key
        try:
            await control.wait_ready(START_DEADLINE_S, process.alive)
        except EngineError:
            raise AssertionError(process.log.read_text()[-3000:]) from None


@contextmanager
def open_stack(
    folder: Path, device: Device = "cpu", width: int = 16, **settings: Any
) -> Iterator[Stack]:
    """Two engines behind the router, ready."""
    make_model(0, width).save_pretrained(folder / "model")
    make_key(folder / "engine.key")
    key = read_key(str(folder / "engine.key"))
    with ExitStack() as resources:
        pairs = [
            resources.enter_context(engine_process(f"sglang-{i}", folder, device, **settings))
            for i in range(2)
        ]
        port, metrics = free_ports(2)
        spec = router_command(
            port=port,
            prometheus_port=metrics,
            turn_timeout_s=300,
            extra={},
            key_file=str(folder / "engine.key"),
        )
        router = Process(spec, folder / "router.log")
        resources.callback(router.kill_group)
        url = f"http://127.0.0.1:{port}"

        async def bring_up() -> None:
            async with RouterControl(url, timeout_s=CALL_S, key=key) as control:
                await control.wait_ready(START_DEADLINE_S, router.alive)
                for engine, process in pairs:
                    await wait_ready(engine, process)
                    await control.add(engine, CALL_S)

        anyio.run(bring_up)
        yield Stack([engine for engine, _ in pairs], url, folder)


async def turns_beside(
    client: EngineClient, push: Callable[[], Awaitable[object]], *, tokens: int
) -> list[Generation]:
    """Eight turns that are in flight as `push` begins."""
    turns: list[Generation] = []

    async def turn(number: int) -> None:
        sampling = SamplingParams(max_new_tokens=tokens, temperature=1.0)
        key = f"episode-{number}"
        turns.append(
            await client.generate([30 + number, 7], sampling, routing_key=key, priority=number)
        )

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(turn, number)
        await push()
    return turns


def client_to(stack: Stack, url: str | None = None, **settings: Any) -> EngineClient:
    return EngineClient(
        url or stack.router,
        stack.engines,
        vocab_size=VOCAB_SIZE,
        max_context=MAX_CONTEXT,
        num_permits=8,
        turn_timeout_s=300,
        key=stack.key,
        **settings,
    )
