"""Calls of hosts through Ray, and what it means when no answer comes.

    ActorUnavailableError   Ray does not know yet whether the host is gone: it is asked again
    GetTimeoutError         the host hangs, as for a disk: what was asked may still be done later
    RayActorError           the host is gone, and its processes with it: the slot is lost
    RayTaskError            the host answers with an error; one of its system's is told in words

Only what may be done twice is asked again after a timeout.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agentrl.errors import AgentRLError, EnvironmentSetupError, SlotLostError

__all__ = ["answer", "is_silent", "on_slot", "patiently", "until_done"]

_LOG = logging.getLogger(__name__)
#: Seconds between calls to a node of which Ray does not know yet whether it is gone.
SILENT_S = 1.0


def answer(reference: Any, timeout_s: float) -> Any:
    """What a host answers. Raises what Ray does."""
    import ray

    return ray.get(reference, timeout=timeout_s)


def is_silent() -> suppress:
    """Nothing comes of a call to a host that gives no answer."""
    import ray

    return suppress(ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError)


@contextmanager
def on_slot(slot: str, address: str, timeout_s: float) -> Iterator[None]:
    """Raises SlotLostError for a host that is gone, or hangs, and EnvironmentSetupError with the
    node's address for what its system refuses; a host that is silent Ray still asks."""
    import ray

    try:
        yield
    except ray.exceptions.ActorUnavailableError:
        raise
    except ray.exceptions.GetTimeoutError as error:
        raise SlotLostError(
            f"{slot} on {address} does not answer within {timeout_s:g} s (--call-timeout-s): look "
            "for a disk or a mount there that hangs"
        ) from error
    except ray.exceptions.RayActorError as error:
        raise SlotLostError(
            f"{slot} on {address} is lost: its node, or Ray there, has ended"
        ) from error
    except ray.exceptions.RayTaskError as error:
        match error.cause:
            case AgentRLError() as cause:
                said = str(cause)
            case OSError() as cause:
                said = f"{type(cause).__name__}: {cause}"
            case _:
                raise  # an error of ours
        raise EnvironmentSetupError(f"{slot} on {address}: {said}") from error


def patiently(timeout_s: float, method: Any, *args: object) -> Any:
    """What a method of a host returns, which Ray may not be able to ask for a while."""
    import ray

    while True:
        with suppress(ray.exceptions.ActorUnavailableError):
            return answer(method.remote(*args), timeout_s)
        time.sleep(SILENT_S)  # Ray asks that node again, and decides


def until_done(slot: str, timeout_s: float, method: Any, *args: object) -> Any:
    """The same of a method that may be asked again and again, however long its host hangs."""
    import ray

    while True:
        with suppress(ray.exceptions.GetTimeoutError, TimeoutError):
            return patiently(timeout_s, method, *args)
        _LOG.warning(
            "the node of %s hangs, and is asked again: look for a disk or a mount there that does "
            "not answer",
            slot,
        )
        time.sleep(SILENT_S)
