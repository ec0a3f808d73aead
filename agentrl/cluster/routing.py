"""What the driver itself asks of the router: to forget an engine, and whether it has all of them.

Weights and routes are the learner's business; a router that does not answer now is asked again by
whoever comes next.
"""

import logging
from collections.abc import Collection

from agentrl.cluster.spec import RunSpec
from agentrl.errors import EngineError
from agentrl.serving.key import read_key
from agentrl.serving.router_control import RouterControl

__all__ = ["lacks_route", "unroute"]

_LOG = logging.getLogger(__name__)


async def unroute(spec: RunSpec, name: str) -> None:
    """Take an engine of the run out of its router."""
    (engine,) = [engine for engine in spec.engines if engine.name == name]
    try:
        async with _router(spec) as router:
            await router.remove(engine, deadline_s=spec.config.call_timeout_s / 6)
    except EngineError as error:
        _LOG.warning("%s could not be unrouted: %s", name, error)


async def lacks_route(spec: RunSpec, late: Collection[str]) -> bool:
    """Whether the router lacks one of these engines, or any when it is one of them itself."""
    wanted = {each.url for each in spec.engines if each.name in late or "router" in late}
    try:
        async with _router(spec) as router:
            return bool(wanted - (await router.workers()).keys())
    except EngineError as error:
        _LOG.warning("the router cannot say which engines it has: %s", error)
        return True


def _router(spec: RunSpec) -> RouterControl:
    assert spec.router_url is not None
    key = read_key(spec.engine_key_file)
    return RouterControl(spec.router_url, timeout_s=spec.config.call_timeout_s / 12, key=key)
