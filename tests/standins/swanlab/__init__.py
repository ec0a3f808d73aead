"""A stand-in for the package swanlab: the calls that agentrl makes, recorded, in the signatures of
swanlab 0.10 (https://docs.swanlab.cn/en/api/py-init.html). What SwanLab writes of a program (the
command line, as the system has it) goes to the folder of the run, as there; and on the main thread
it takes SIGINT for itself."""

import json
import signal
import threading
from pathlib import Path
from typing import Any, Literal

from tests.standins.recorded import Recorded

__all__ = ["RECORDED", "Run", "Settings", "init"]


class AuthenticationError(Exception):
    """What a login that fails raises."""


RECORDED = Recorded(AuthenticationError)


class _Terminal:
    def __init__(self, *, proxy_type: Literal["all", "stdout", "stderr", "none"] = "all") -> None:
        self.proxy_type = proxy_type


class _Probe:
    def __init__(self, *, runtime: bool = True) -> None:
        self.runtime = runtime


class Settings:
    Terminal = _Terminal
    Probe = _Probe

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_host: str | None = None,
        interactive: bool = True,
        terminal: _Terminal | None = None,
        probe: _Probe | None = None,
    ) -> None:
        self.api_key, self.api_host, self.interactive = api_key, api_host, interactive
        self.terminal, self.probe = terminal or _Terminal(), probe or _Probe()


class Run:
    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        RECORDED("log", data=data, step=step)

    def finish(
        self,
        state: Literal["success", "crashed", "aborted"] = "success",
        error: str | None = None,
        async_log_timeout: int | None = None,
    ) -> None:
        RECORDED("finish", state=state, error=error)


def init(
    *,
    reinit: bool | None = None,
    log_dir: str | None = None,
    mode: Literal["online", "local", "offline", "disabled"] | None = None,
    workspace: str | None = None,
    project: str | None = None,
    name: str | None = None,
    id: str | None = None,
    resume: Literal["must", "allow", "never"] | None = None,
    config: dict[str, Any] | None = None,
    settings: Settings | None = None,
) -> Run:
    settings = settings or Settings()
    RECORDED(
        "init",
        log_dir=log_dir,
        mode=mode,
        workspace=workspace,
        project=project,
        name=name,
        id=id,
        resume=resume,
        config=config,
        key=settings.api_key,
        host=settings.api_host,
        interactive=settings.interactive,
        terminal=settings.terminal.proxy_type,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: None)
    files = Path(str(log_dir), f"run-{id}", "files")
    files.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"config": config, "runtime": None}
    if settings.probe.runtime:
        about["runtime"] = Path("/proc/self/cmdline").read_text()
    (files / "swanlab-metadata.json").write_text(json.dumps(about))
    return Run()
