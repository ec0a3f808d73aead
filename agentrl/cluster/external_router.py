"""How a run leaves a router that somebody else started: without the engines of the run."""

import anyio

from agentrl.cluster.spec import RunSpec
from agentrl.errors import EngineError
from agentrl.serving.key import read_key
from agentrl.serving.router_control import RouterControl

__all__ = ["leave_router"]

#: All calls to the router.
_LEAVE_S = 10.0


async def leave_router(spec: RunSpec) -> list[str]:
    """Take the engines of the run out of its router; returns notes on what could not be done."""
    assert spec.router_url is not None
    key = read_key(spec.engine_key_file)
    try:
        with anyio.fail_after(_LEAVE_S):
            async with RouterControl(spec.router_url, timeout_s=_LEAVE_S, key=key) as router:
                for engine in spec.engines:
                    await router.remove(engine, deadline_s=_LEAVE_S)
    except (EngineError, TimeoutError) as error:
        note = (
            f"router {spec.router_url} may still route to engines of this run, which have ended: "
            f"{error}; take them out (DELETE /workers/ID) before the next run"
        )
        return [note]
    return []
