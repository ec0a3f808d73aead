"""Why Ray gave hosts no place, in words: nobody made room in time, or a host could not start.

Ray says the second of a node that lacks a package, of one that has gone, and of a worker that was
killed; the last line of what it says names which.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import EnvironmentSetupError

__all__ = ["answering", "free_of", "no_answer", "no_place"]


def no_place(error: Exception, wanted: str, timeout_s: float, free: str) -> EnvironmentSetupError:
    """`wanted`: names of hosts, and their devices. `free`: what others leave of the cluster."""
    if _is_late(error):
        return EnvironmentSetupError(
            f"Ray found no place for {wanted} within {timeout_s:g} s{free}: other jobs have it, or"
            " no node is large enough; --place-timeout-s waits longer"
        )
    return EnvironmentSetupError(
        f"Ray could not start what is to run {wanted} on a node: {_last_line(error)}\n"
        "  Is the same agentrl installed on every node, with its packages?"
        " `agentrl doctor --ray-address` asks each of them"
    )


def no_answer(error: Exception, num_gpus: int, timeout_s: float) -> EnvironmentSetupError:
    """Of a node with GPUs that was asked what it can do with them."""
    how = f"within {timeout_s:g} s" if _is_late(error) else f"({_last_line(error)})"
    return EnvironmentSetupError(
        f"Ray sees {num_gpus} GPUs, and none of them could be asked what it can do {how}\n"
        "  --device cpu does without them"
    )


def free_of(device: str) -> str:
    """What other users of the cluster leave of it."""
    import ray

    free = ray.available_resources().get(device, 0)
    total = ray.cluster_resources().get(device, 0)
    return f" ({free:g} of {total:g} {device}s are free)" if total else ""


@contextmanager
def answering(timeout_s: float) -> Iterator[None]:
    """Raises EnvironmentSetupError where a node does not answer, or cannot. A host that is gone
    stays Ray's RayActorError."""
    import ray

    try:
        yield
    except ray.exceptions.RayActorError:
        raise
    except ray.exceptions.RayError as error:
        text = f"no answer within {timeout_s:g} s" if _is_late(error) else _last_line(error)
        raise EnvironmentSetupError(text) from error


def _is_late(error: Exception) -> bool:
    """Whether Ray's answer did not come in time."""
    import ray

    return isinstance(error, ray.exceptions.GetTimeoutError)


def _last_line(error: Exception) -> str:
    """Ray puts what happened behind a page of where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
