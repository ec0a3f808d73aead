"""Which sandbox a worker has: bubblewrap where it works, the plain one where that is allowed, and
otherwise a refusal with its remedies."""

import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from agentrl.errors import EnvironmentSetupError, InfrastructureError
from agentrl.tools.sandbox import Sandbox, SandboxLimits, choice, open_sandbox
from agentrl.tools.sandbox.bubblewrap import Bubblewrap
from agentrl.tools.sandbox.plain import Plain
from tests.security.sandboxes import bubblewrap

pytestmark = pytest.mark.anyio


async def test_bubblewrap_is_used_where_it_works() -> None:
    expected = bubblewrap()
    assert await open_sandbox() == await open_sandbox(allow_unsafe=True) == expected


async def test_without_bubblewrap_the_refusal_names_the_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "_found", {})  # what another test has found is not said again
    said = r"bubblewrap is not installed.*apt install bubblewrap.*--allow-unsafe-sandbox"
    with pytest.raises(EnvironmentSetupError, match=said):
        await open_sandbox()
    assert isinstance(await open_sandbox(allow_unsafe=True), Plain)
    assert "the model's code runs in the plain sandbox" in caplog.text


@pytest.mark.parametrize("namespaces", [True, False])
async def test_who_gets_no_namespaces_is_told_what_of_the_worker_is_open(
    namespaces: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = Plain(namespaces=namespaces)
    if namespaces and not await choice.has_namespaces(plain):
        pytest.skip("this kernel gives the plain sandbox no namespaces")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "_found", {})
    monkeypatch.setattr(choice, "Plain", lambda: plain)
    assert await open_sandbox(allow_unsafe=True) == plain
    assert ("no namespaces, on this worker's memory" in caplog.text) is not namespaces


async def test_a_bubblewrap_that_does_not_work_is_not_used_and_its_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="No permissions to create new namespace"):
        await open_sandbox()
    assert isinstance(await open_sandbox(allow_unsafe=True), Plain)


async def test_one_failure_of_bubblewrap_does_not_give_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that begin at once try it together, and twice in all where it fails once."""
    real = bubblewrap().program
    flaky, starts = tmp_path / "bwrap", tmp_path / "starts"
    flaky.write_text(
        f"#!/bin/sh\necho x >> {starts}\n"
        f'if [ "$(wc -l < {starts})" = 1 ]; then echo Try again >&2; exit 1; fi\n'
        f'exec {real} "$@"\n'
    )
    flaky.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found: list[Sandbox] = []

    async def one() -> None:
        found.append(await open_sandbox(allow_unsafe=True))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
    assert found == [Bubblewrap(str(flaky))] * 3
    assert starts.read_text() == "x\n" * 2


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/bwrap"])
async def test_a_run_that_cannot_begin_is_an_infrastructure_failure(program: str) -> None:
    with pytest.raises(InfrastructureError, match=program):
        await Bubblewrap(program).run("print(1)", SandboxLimits())
