"""The end of an Env: what goes wrong there is logged, and whatever came before it stands."""

import logging

import anyio

from agentrl.actors.boundary import Boundary, describe
from agentrl.envs.env import Env

__all__ = ["CLOSE_TIMEOUT_S", "close_env"]

_LOG = logging.getLogger(__name__)

#: Seconds that an Env's `close` may take, shielded from every cancellation.
CLOSE_TIMEOUT_S = 10.0


async def close_env(
    env: Env, whose: str, boundary: Boundary, timeout_s: float = CLOSE_TIMEOUT_S
) -> None:
    """Close the Env of `whose`, as in `episode 00000001/0#0`. Raises only what `boundary` does."""
    with anyio.move_on_after(timeout_s, shield=True) as deadline:
        try:
            await env.close()
        except BaseException as failure:
            await boundary.take(failure)
            _LOG.warning("%s: its Env's close raised %s", whose, describe(failure))
    if deadline.cancelled_caught:
        _LOG.warning("%s: its Env's close was cut after %g s", whose, timeout_s)
