"""The services of an Env for as long as a sub-command needs them, on this host."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import anyio

from agentrl.cluster.ports import free_ports
from agentrl.cluster.services import service_command, wait_ready
from agentrl.envs.env import ServiceSpec
from agentrl.errors import EnvironmentSetupError

__all__ = ["running"]

HOST = "127.0.0.1"
#: Seconds that a service has to end in peace.
STOP_S = 5.0


@contextmanager
def running(specs: Mapping[str, ServiceSpec], start_s: float) -> Iterator[dict[str, str]]:
    """Addresses by name, once all answer. Raises EnvironmentSetupError, with the end of what each
    one said, when they do not within `start_s`."""
    ports = dict(zip(specs, free_ports(len(specs)), strict=True))
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        urls = {name: f"http://{HOST}:{port}" for name, port in ports.items()}
        try:
            for name, spec in specs.items():
                processes.append(_started(name, service_command(spec, HOST, ports[name]), said))
            ready = {name: urls[name] + spec.ready_path for name, spec in specs.items()}
            try:
                anyio.run(wait_ready, ready, start_s)
            except EnvironmentSetupError as error:
                said.seek(0)
                raise EnvironmentSetupError(f"{error}\n{said.read()[-2000:]}") from None
            yield urls
        finally:
            _stop(processes)


def _started(name: str, command: tuple[str, ...], said: TextIO) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603 (the Env's own)
    except OSError as error:
        raise EnvironmentSetupError(f"service {name} cannot be started: {error}") from error


def _stop(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
