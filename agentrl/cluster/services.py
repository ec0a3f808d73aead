"""Services an Env asks for (a retriever, a sandbox pool): started per run, then watched."""

from collections.abc import Callable, Mapping

import aiohttp
import anyio

from agentrl.envs.env import ServiceSpec
from agentrl.errors import EnvironmentSetupError

__all__ = ["service_command", "wait_ready"]

_RETRY_S = 0.1


def service_command(spec: ServiceSpec, host: str, port: int) -> tuple[str, ...]:
    """The command of a service that is to listen on `host` and `port`."""
    return tuple(part.replace("{host}", host).replace("{port}", str(port)) for part in spec.argv)


async def wait_ready(
    urls: Mapping[str, str], timeout_s: float, is_lost: Callable[[str], bool] = lambda name: False
) -> None:
    """Wait until every URL answers 200, or what it is of `is_lost`; EnvironmentSetupError names
    those that do not in time."""
    missing = dict(urls)

    async def wait(name: str, url: str, session: aiohttp.ClientSession) -> None:
        while not is_lost(name):
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        del missing[name]
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            # A starting process announces itself by answering; there is no event to wait for.
            await anyio.sleep(_RETRY_S)
        del missing[name]

    limits = aiohttp.ClientTimeout(total=5.0)
    with anyio.move_on_after(timeout_s):
        async with aiohttp.ClientSession(timeout=limits) as session, anyio.create_task_group() as g:
            for name, url in urls.items():
                g.start_soon(wait, name, url, session)
    if missing:
        raise EnvironmentSetupError(
            f"not ready after {timeout_s:g} s (--start-timeout-s): "
            + ", ".join(f"{name} ({url})" for name, url in sorted(missing.items()))
            + "; see their files in the run's logs/ folder"
        )
