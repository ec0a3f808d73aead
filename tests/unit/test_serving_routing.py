"""An engine is routed when its weights have arrived, also where the router comes up after them."""

import logging
import socket
import threading
from collections.abc import Iterable
from typing import Any, cast

import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from agentrl.errors import EngineError
from agentrl.serving.router_control import RouterControl
from agentrl.serving.routing import RoutedWeightSink
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, PushReport

ENGINES = [EngineAddress("engine-0", "http://127.0.0.1:1"), EngineAddress("engine-1", "http://x:2")]


class Below:
    """A sink whose pushes all arrive."""

    def __init__(self) -> None:
        self.heard: list[EngineAddress] = []

    def moved(self, engines: Iterable[EngineAddress]) -> None:
        self.heard += engines

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        return PushReport(version, 0.0, 0.0, 0, tuple(engine.name for engine in ENGINES))


def sink_to(url: str, **told: Any) -> RoutedWeightSink:
    return RoutedWeightSink(url, ENGINES, lambda on_lost: cast(FleetWeightSink, Below()), **told)


def router(routed: list[str]) -> web.Application:
    async def workers(request: web.Request) -> web.Response:
        known = [{"url": url, "id": url, "is_healthy": True} for url in routed]
        return web.json_response({"workers": known})

    async def add(request: web.Request) -> web.Response:
        routed.append((await request.json())["url"])
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/workers", workers)
    app.router.add_post("/workers", add)
    return app


def test_a_router_that_is_about_to_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, call = threading.Event(), RouterControl._call

    async def watched(self: RouterControl, *args: Any, **options: Any) -> Any:
        try:
            return await call(self, *args, **options)
        except EngineError:
            refused.set()
            raise

    monkeypatch.setattr(RouterControl, "_call", watched)
    routed: list[str] = []
    with socket.socket() as bound, start_blocking_portal("asyncio") as portal:
        bound.bind(("127.0.0.1", 0))
        sink = sink_to(f"http://127.0.0.1:{bound.getsockname()[1]}")
        pushing = threading.Thread(target=sink.publish, args=(0, []))
        pushing.start()
        assert refused.wait(300)
        runner = web.AppRunner(router(routed), shutdown_timeout=0.1)
        portal.call(runner.setup)
        portal.call(web.SockSite(runner, bound).start)
        pushing.join(300)
        portal.call(runner.cleanup)
    assert not pushing.is_alive()
    assert routed == [engine.url for engine in ENGINES]


def test_a_router_that_stays_away_is_logged_and_the_push_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as bound, caplog.at_level(logging.WARNING):
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        report = sink_to(url, timeout_s=0.2).publish(3, [])
    assert report.version == 3
    assert "the router could not be told of the engines" in caplog.text


def test_an_engine_is_routed_where_it_is_now() -> None:
    routed = ["http://127.0.0.1:1"]
    below = Below()
    there = EngineAddress("engine-1", "http://10.0.0.9:7")
    with start_blocking_portal() as portal:
        runner = web.AppRunner(router(routed))
        portal.call(runner.setup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        portal.call(site.start)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        sink = RoutedWeightSink(url, ENGINES, lambda on_lost: cast(FleetWeightSink, below))
        sink.moved([there])
        sink.publish(1, ())
        portal.call(runner.cleanup)
    assert below.heard == [there]
    assert routed == ["http://127.0.0.1:1", "http://10.0.0.9:7"]
