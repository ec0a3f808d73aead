"""What a run on one machine opens to others: nothing without its keys. One run serves all tests."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import aiohttp
import anyio
import psutil
import pytest

from agentrl.cluster.spec import RunSpec, read_spec
from agentrl.serving.control import EngineControl
from agentrl.serving.key import authorization, read_key
from tests.integration.listeners import listeners_of

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


class Run(NamedTuple):
    pid: int
    folder: Path
    home: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that has made its first iteration and goes on."""
    place = tmp_path_factory.mktemp("ports")
    home = place / "home"
    home.mkdir()
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--async-buffer-size", "4",
        "--run-dir", str(place), "--run-id", "run", "--skip-eval-before-train",
        "--rollout-batch-size", "4", "--num-rollout", "500",
    ]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"NO_COLOR": "1", "HOME": str(home)}
    with (place / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=place, env=env, stdout=output, stderr=output)
    try:
        phases = place / "run" / "phases.json"
        deadline = time.monotonic() + 1800
        while not (phases.exists() and '"first_step"' in phases.read_text()):
            assert process.poll() is None, (place / "output").read_text()
            assert time.monotonic() < deadline, (place / "output").read_text()
            time.sleep(0.1)
        yield Run(process.pid, place / "run", home)
    finally:
        process.terminate()
        try:
            process.wait(1800)
        finally:
            process.kill()


def process_of(run: Run, part: str) -> psutil.Process:
    """The process of the run that has `part` in its command line."""
    processes = psutil.Process(run.pid).children(recursive=True)
    return next(p for p in processes if any(part in word for word in p.cmdline()))


def test_everything_listens_on_loopback(run: Run) -> None:
    found = listeners_of(run.pid)
    # The test would pass if it found nothing: these must be among them.
    for part in ("raylet", "gcs_server", "router", "learner-0", "engine_main", "retriever"):
        assert any(part in listener.process for listener in found), part
    assert [str(listener) for listener in found if not listener.is_on_loopback] == []


def test_collectives_listen_on_loopback_whatever_the_hosts_name_means(run: Run) -> None:
    """Here it may mean loopback; gloo and NCCL take the variable in its place."""
    for part in ("learner-0", "engine_main"):
        environment = process_of(run, part).environ()
        assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == (
            "lo",
            "lo",
        )


def test_processes_of_the_run_have_the_users_words_to_ray(run: Run) -> None:
    """An Env may use a Ray of the user's own."""
    assert (
        not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"} & process_of(run, "worker-0").environ().keys()
    )


def test_ray_leaves_nothing_in_the_users_home(run: Run) -> None:
    assert not (run.home / ".ray").exists()


#: What a program may ask without the key: whether somebody is there.
OPEN = ("/health", "/ready", "/metrics")
ROUTER_ENDPOINTS = [
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("DELETE", "/workers/1"),
    ("PUT", "/workers/1"),
    ("POST", "/generate"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/flush_cache"),
    ("GET", "/get_loads"),
]


def spec_of(run: Run) -> RunSpec:
    return read_spec(Path(process_of(run, "worker-0").cmdline()[-1]))


@pytest.mark.anyio
async def test_an_engine_answers_nothing_but_its_health_without_the_key(run: Run) -> None:
    spec = spec_of(run)
    engine = spec.engines[0].url
    answers = {}
    async with aiohttp.ClientSession() as stranger:
        shown = authorization(read_key(spec.engine_key_file))
        async with stranger.get(engine + "/openapi.json", headers=shown) as answer:
            endpoints = (await answer.json())["paths"]
        assert {"/update_weights_from_disk", "/pause_generation", "/generate"} <= endpoints.keys()
        for path, methods in endpoints.items():
            for method in methods:
                if not path.startswith(OPEN):
                    url = engine + path.replace("{", "").replace("}", "")
                    async with stranger.request(method.upper(), url, json={}) as answer:
                        answers[method, path] = answer.status
    assert {what: status for what, status in answers.items() if status != 401} == {}


@pytest.mark.anyio
async def test_the_router_answers_nothing_but_its_health_without_the_key(run: Run) -> None:
    router = str(spec_of(run).router_url)
    answers = {}
    async with aiohttp.ClientSession() as stranger:
        for method, path in ROUTER_ENDPOINTS:
            async with stranger.request(method, router + path, json={}) as answer:
                answers[method, path] = answer.status
        wrong = authorization("0" * 64)
        async with stranger.get(router + "/workers", headers=wrong) as answer:
            answers["GET", "with another key"] = answer.status
    assert set(answers.values()) == {401}, answers


def test_the_key_stands_in_no_command_line_environment_or_log(run: Run) -> None:
    key = str(read_key(spec_of(run).engine_key_file))
    for process in psutil.Process(run.pid).children(recursive=True):
        with suppress(psutil.Error):
            assert key not in " ".join([*process.cmdline(), *process.environ().values()])
    logs = {path.stem: path.read_text(errors="replace") for path in (run.folder / "logs").iterdir()}
    assert "server_args" in logs["engine-0"]
    assert [name for name, text in logs.items() if key in text] == []


@pytest.mark.anyio
async def test_a_pause_of_all_engines_is_told_and_the_run_goes_on(run: Run) -> None:
    spec = spec_of(run)
    output = run.folder.parent / "output"
    (engine,) = spec.engines
    key = read_key(spec.engine_key_file)
    with anyio.fail_after(1800):
        async with EngineControl(engine, timeout_s=60, key=key) as control:
            while "took no turns for 20 s" not in output.read_text():
                await control.pause()  # again: a push that was due has ended the first one
                await anyio.sleep(0.5)
        while "engine-0 took up turns again" not in output.read_text():  # noqa: ASYNC110
            await anyio.sleep(0.5)
