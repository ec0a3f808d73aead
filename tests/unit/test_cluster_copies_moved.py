"""Agent workers whose node is lost, and the copies of services beside them: what starts where, in
which order, and which copy each worker uses then."""

import http.server
import threading
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from agentrl.cluster.spec import CopyAddress
from agentrl.envs.env import ServiceSpec
from tests.unit.lost_slots import SLOTS, World, ended, quick

__all__ = ["quick"]

COPIED: dict[str, Sequence[str]] = SLOTS | {
    "host": ("buffer", "router", "worker-0", "search"),
    "workers-1": ("worker-1", "search.1"),
}
SEARCH = ServiceSpec("search", ["serve", "{host}:{port}"], "/up", per="node")
AT_FIRST = {"worker-0": ["search"], "worker-1": ["search.1"]}


class Service:
    """Answers 503 until it is `up`."""

    def __init__(self) -> None:
        self.up = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.set()
                self.send_response(200 if outer.up.is_set() else 503)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.asked = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def copied(*lost: str, service: Service, **flags: float) -> World:
    """A run of which two nodes have a copy of `search`. A place is given where `service` is."""
    world = World(*lost, places=dict.fromkeys(lost, 1), slots=COPIED, **flags)
    roster = world.processes.roster
    copies = {
        name: CopyAddress("search", f"http://10.0.0.2:{port}", SEARCH)
        for name, port in (("search", 6500), ("search.1", 6501))
    }
    roster.spec = msgspec.structs.replace(roster.spec, copies=copies, copies_used=AT_FIRST)
    world.cluster.uses = dict(AT_FIRST)
    world.cluster.there, world.cluster.ports = "127.0.0.1", {"search.1": service.port}
    return world


def test_a_copy_starts_on_the_new_node_and_workers_once_it_answers(service: Service) -> None:
    world = copied("workers-1", service=service)

    def until(w: World) -> bool:
        if service.asked.is_set() and not service.up.is_set():
            assert w.started == ["search.1"], "it does not answer yet"
            service.up.set()
        return "worker-1" in w.started

    world.run(until)
    assert world.started == ["search.1", "worker-1"]
    url = f"http://127.0.0.1:{service.port}"
    assert world.cluster.started[0].argv == ("serve", f"127.0.0.1:{service.port}")
    assert world.cluster.written[-1].services_of("worker-1") == {"search": url}
    assert world.cluster.written[-1].services_of("worker-0") == {"search": "http://10.0.0.2:6500"}
    lost, back = world.said
    assert lost.endswith(
        "with worker-1, search.1; the run goes on with worker-0, engine-0, engine-1"
    )
    assert back == (
        f"workers-1 is placed again on 127.0.0.1: worker-1, search.1 ({url}) start there"
    )


def test_on_a_node_that_has_a_copy_workers_use_that_one_and_no_second_is_started(
    service: Service,
) -> None:
    world = copied("workers-1", service=service)
    world.cluster.uses = AT_FIRST | {"worker-1": ["search"]}
    world.run(lambda w: "worker-1" in w.started)
    assert world.started == ["worker-1"]
    assert world.cluster.written[-1].services_of("worker-1") == {"search": "http://10.0.0.2:6500"}
    assert world.said[-1] == "workers-1 is placed again on 127.0.0.1: worker-1 starts there"
    assert not service.asked.is_set()


def test_a_copy_that_others_share_comes_back_on_its_node_where_it_was(service: Service) -> None:
    world = copied("workers-1", service=service)
    world.cluster.held = {"search.1": 6501}
    world.run(lambda w: "search.1" in w.started)
    assert world.cluster.written[-1].copies["search.1"].url == "http://10.0.0.2:6501"


def test_a_copy_that_does_not_get_ready_there_is_killed_and_started_again(
    service: Service,
) -> None:
    world = copied("workers-1", service=service, start_timeout_s=0.3)

    def until(w: World) -> bool:
        if w.started.count("search.1") == 2:
            service.up.set()
        return "worker-1" in w.started

    world.run(until)
    assert len(world.cluster.killed) >= 1
    assert world.started[-1] == "worker-1"
    assert "search.1 ended with -9: it is started again; see search.1.log" in world.said


def test_a_copy_that_dies_is_started_again_and_too_often_ends_the_run(service: Service) -> None:
    """Agent workers of its node would play nothing without it, whatever others have."""
    world = copied(service=service)

    def until(w: World) -> bool:
        w.end("search.1")
        return False

    error = ended(world, until)
    assert world.started == ["search.1"] * 5
    assert error.startswith("search.1 (pid ")
