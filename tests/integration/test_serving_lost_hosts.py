"""An engine's host that is gone without a word is told within seconds, not at the deadline of the
call; one that is there and takes its time is waited for."""

import socket
import sys
from collections.abc import Iterator

import anyio
import pytest

from agentrl.errors import EngineError
from agentrl.serving import http_control
from agentrl.serving.control import EngineControl
from agentrl.types import EngineAddress
from tests.integration.namespaces import ROOT, Nodes, short_folder

#: An engine that takes a request and answers once `LATE` seconds have passed.
_ENGINE = """
import http.server, sys, time
class Late(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        time.sleep(float(sys.argv[2]))
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer((sys.argv[1], 8000), Late)
print("ready", flush=True)
server.serve_forever()
"""
#: Says what came of one call, and after how many seconds.
_CALL = """
import anyio, sys, time
from agentrl.errors import EngineError
from agentrl.serving.control import EngineControl
from agentrl.types import EngineAddress
async def main():
    async with EngineControl(EngineAddress("engine-0", sys.argv[1]), timeout_s=3000) as engine:
        began = time.monotonic()
        try:
            await engine.require_alive()
            print("answered")
        except EngineError as error:
            print(f"{time.monotonic() - began:.0f} {error}")
anyio.run(main)
"""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Two, without Ray."""
    with short_folder() as path:
        made = Nodes(path, (1, 1))
        try:
            made.connect()
            yield made
        finally:
            made.close()


def answer(nodes: Nodes, *, late: int, cut: bool) -> str:
    """What a call from node 0 comes to, of an engine on node 1; `cut`: its cable goes once it has
    been asked."""
    engine = nodes.start(1, [sys.executable, "-c", _ENGINE, nodes.ip(1), str(late)])
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    url = f"http://{nodes.ip(1)}:8000"
    call = nodes.program([sys.executable, "-c", _CALL, url], ROOT, {"PYTHONPATH": str(ROOT)})
    assert engine.stdout.readline() == "asked\n"
    if cut:
        nodes.cut(1)
    said, _ = call.communicate(timeout=300)
    return said


def test_a_call_ends_soon_after_the_cable_of_the_engines_host_is_cut(nodes: Nodes) -> None:
    seconds, _, said = answer(nodes, late=3000, cut=True).partition(" ")
    assert int(seconds) < 300
    assert said.startswith("engine-0 http://")
    assert "/server_info failed: " in said


def test_an_engine_that_takes_its_time_on_a_host_that_is_there_is_waited_for(
    nodes: Nodes,
) -> None:
    assert answer(nodes, late=30, cut=False) == "answered\n"


def test_a_host_that_takes_no_connection_is_given_up_before_the_deadline_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_control, "HOST_LOST_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        first.connect(full.getsockname())
        url = "http://{}:{}".format(*full.getsockname())

        async def ask() -> None:
            engine = EngineControl(EngineAddress("engine-0", url), timeout_s=3000)
            async with engine:
                await engine.require_alive()

        with pytest.raises(EngineError, match=r"engine-0 .*/server_info failed: Conn.*timeout"):
            anyio.run(ask)
