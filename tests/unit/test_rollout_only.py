"""`--debug-rollout-only`: leases are taken and saved, versions are told, nothing is learnt."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.clock import MonotonicClock
from agentrl.cluster.slots import Supply, plan_slots
from agentrl.config.run import RunConfig
from agentrl.errors import PeerLostError, PushError
from agentrl.learner.rollout_only import run_rollout_only
from agentrl.rollout_file import read_rollouts
from agentrl.serving.labels import LabelSink
from agentrl.types import EngineAddress, VersionRow
from agentrl.wire.messages import PushDone, Retire, Stepped, Welcome
from tests.integration.learner_world import Labels, World, WorldPeer
from tests.manual_clock import ManualClock


class _Peer(WorldPeer):
    """Says which lease was the last to be reported, as the buffer does."""

    @property
    def welcome(self) -> Welcome:
        welcome = super().welcome
        stepped = max((step.number for step in self._world.of(Stepped)), default=0)
        return Welcome(1, 1.0, welcome.versions, stepped=stepped)


def play(world: World, **flags: Any) -> int:
    clock = ManualClock()
    config = RunConfig(max_staleness=0, **flags)
    end = run_rollout_only(config, _Peer(world, clock), Labels(world), clock=clock)
    return end.iteration


def test_leases_are_saved_and_reported_and_nothing_is_learnt(tmp_path: Path) -> None:
    world = World([2, 3, 1])
    save = f"{tmp_path}/{{rollout_id}}"
    assert play(world, debug_rollout_only=True, save_debug_rollout_data=save) == 3
    assert [(step.number, step.skipped) for step in world.of(Stepped)] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    rows = [message.row for message in world.of(PushDone)]
    assert rows == [VersionRow(k, k - 1 if k else None, k) for k in range(4)]
    assert world.of(Retire)[-1].through == 3
    steps = [step.metrics for step in world.of(Stepped)]
    assert [step["rollout/num_groups"] for step in steps] == [2, 3, 1]
    assert [len(step["train/age_histogram"]) for step in steps] == [1, 1, 1], "none is old"
    saved = [read_rollouts(tmp_path / str(number)).lease for number in (1, 2, 3)]
    assert [len(lease.groups) for lease in saved] == [2, 3, 1]


def test_a_log_function_is_called_with_each_lease(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def f(rollout_id, args, samples, extra, seconds):\n    extra['mine/n'] = len(samples)\n"
    )
    world = World([2, 3])
    path = f"{tmp_path / 'mine.py'}:f"
    play(world, debug_rollout_only=True, custom_rollout_log_function_path=path)
    assert [step.logged.figures["mine/n"] for step in world.of(Stepped)] == [2 * 4, 3 * 4]


def test_one_that_comes_back_goes_on_after_what_was_reported(tmp_path: Path) -> None:
    world = World([1] * 4)
    world.dies_at = ("fetch", 2)
    save = f"{tmp_path}/{{rollout_id}}"
    with pytest.raises(PeerLostError):
        play(world, save_debug_rollout_data=save)
    assert play(world, save_debug_rollout_data=save) == 4
    assert [step.number for step in world.of(Stepped)] == [1, 2, 3, 4]
    rows = [message.row for message in world.of(PushDone)]
    assert rows[3] == VersionRow(3, 2, 2), "the same weights under a number of their own"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "4"]


def test_no_device_is_taken_for_a_learner() -> None:
    config = RunConfig(debug_rollout_only=True, actor_num_gpus_per_node=4, rollout_num_gpus=2)
    slots = plan_slots(config, Supply("GPU", (2,)), services={})
    assert [(slot.name, slot.size) for slot in slots] == [
        ("host", 0),
        ("engine-0", 1),
        ("engine-1", 1),
    ]
    assert "learner-0" in slots[0].processes


def engine(told: list[dict[str, Any]]) -> web.Application:
    async def label(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.json_response({"success": True})

    async def model(request: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/model_info", model)
    app.router.add_get("/server_info", model)
    app.router.add_post("/update_weight_version", label)
    return app


async def _serve(app: web.Application) -> str:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


def sink(*engines: EngineAddress, lost: list[str], timeout_s: float = 60.0) -> LabelSink:
    return LabelSink(
        engines,
        timeout_s=timeout_s,
        on_lost=lambda engine: lost.append(engine.name),
        clock=MonotonicClock(),
    )


def test_engines_are_told_the_version_while_they_go_on_and_a_lost_one_is_named() -> None:
    told: list[dict[str, Any]] = []
    lost: list[str] = []
    gone = EngineAddress("engine-1", "http://127.0.0.1:1")
    with start_blocking_portal() as portal:
        there = EngineAddress("engine-0", _started(portal, told))
        report = sink(there, gone, lost=lost).publish(7, ())
    assert report.engines == ("engine-0",)
    assert told == [{"new_version": "7", "abort_all_requests": False}]
    assert lost == ["engine-1"]
    with pytest.raises(PushError, match="version 8 was told to no engine"):
        sink(gone, lost=lost, timeout_s=0.0).publish(8, ())


def test_an_engine_that_is_elsewhere_is_told_there() -> None:
    told: list[dict[str, Any]] = []
    with start_blocking_portal() as portal:
        made = sink(EngineAddress("engine-0", "http://127.0.0.1:1"), lost=[])
        made.moved([EngineAddress("engine-0", _started(portal, told))])
        assert made.publish(7, ()).engines == ("engine-0",)
    assert len(told) == 1


def _started(portal: BlockingPortal, told: list[dict[str, Any]]) -> str:
    url: str = portal.call(_serve, engine(told))
    return url
