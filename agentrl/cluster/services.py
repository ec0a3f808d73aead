"""Services an Env asks for (a retriever, a sandbox pool): started per run or node, then watched."""

from collections.abc import Callable, Collection, Iterable, Mapping
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec

from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.roster import Roster
from agentrl.cluster.service_copies import ServiceCopy
from agentrl.cluster.spec import CopyAddress
from agentrl.envs.env import ServiceSpec
from agentrl.errors import EnvironmentSetupError

__all__ = ["copy_orders", "copy_there", "service_command", "until_ready", "wait_ready"]

_RETRY_S = 0.1


def service_command(spec: ServiceSpec, host: str, port: int) -> tuple[str, ...]:
    """The command of a service that is to listen on `host` and `port`."""
    return tuple(part.replace("{host}", host).replace("{port}", str(port)) for part in spec.argv)


def copy_orders(
    copies: Iterable[ServiceCopy],
    addresses: Mapping[str, CopyAddress],
    env: Mapping[str, str],
    log: Callable[[str], str],
) -> list[ProcessOrder]:
    """The orders of copies of services, with the devices of each. `addresses`: by process."""
    orders = []
    for copy in copies:
        at = addresses[copy.process]
        devices = (copy.first, copy.first + copy.size)
        order = ProcessOrder(
            copy.process, (), "node-service", dict(env), log(copy.process), devices=devices
        )
        orders.append(copy_there(order, at))
    return orders


def copy_there(order: ProcessOrder, at: CopyAddress) -> ProcessOrder:
    """The order of a copy that is to listen there."""
    place = urlsplit(at.url)
    argv = service_command(at.spec, str(place.hostname), place.port or 0)
    return msgspec.structs.replace(order, argv=argv, ready_url=at.url + at.spec.ready_path)


async def until_ready(roster: Roster, names: Collection[str]) -> None:
    """Wait until those that say when they are ready do, or are away or elsewhere. Raises
    EnvironmentSetupError for those that are not within --start-timeout-s."""
    urls = {name: roster.orders[name].ready_url for name in names}
    told = {name: url for name, url in urls.items() if url}

    def is_lost(name: str) -> bool:
        return name in roster.gone or roster.orders[name].ready_url != told[name]

    await wait_ready(told, roster.spec.config.start_timeout_s, is_lost)


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
