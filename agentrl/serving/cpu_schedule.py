"""What the processes of an engine on a CPU wait for, where SGLang does not wait.

Its scheduler prefills before it decodes. With a hundred requests of a few dozen tokens each, nearly
every decode step would stand behind a prefill of one or two requests, whose cost is mostly fixed.
`PrefillGate` lets a handful of decode steps pass first, unless enough requests wait already: about
a fifth more tokens a second at 16 to 128 requests in flight.

The process that gives requests to groups of ranks asks for the next one again and again, which
burns a whole core. Here it waits for one.
"""

from typing import Any

__all__ = ["ENOUGH_WAITING", "MAX_HELD_STEPS", "PrefillGate", "register_waits"]

#: Decode steps that a waiting request lets pass at most. Twice as many gained nothing.
MAX_HELD_STEPS = 3
#: Waiting requests that are enough for a prefill, as a share of the running ones.
ENOUGH_WAITING = 0.1
#: How long a request is waited for: SGLang's watchdog wants to hear of it more often than that.
_WAIT_MS = 1000


class PrefillGate:
    """OPEN -> HELD for up to MAX_HELD_STEPS decode steps -> OPEN."""

    def __init__(self) -> None:
        self._held_steps = 0

    def holds(self, num_waiting: int, num_running: int) -> bool:
        """Whether this step decodes, though `num_waiting` requests could be prefilled."""
        few = 0 < num_waiting < num_running * ENOUGH_WAITING
        if few and self._held_steps < MAX_HELD_STEPS:
            self._held_steps += 1
            return True
        self._held_steps = 0
        return False


def register_waits() -> None:
    """Put a gate before the scheduler's choice of a prefill batch, and a wait into the loop that
    gives requests out, when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    gate = PrefillGate()

    def choose(original: Any, scheduler: Any, running_batch: Any) -> Any:
        from sglang.srt.managers.schedule_batch import NextBatchPlan

        # The rest of a long prompt never waits: its cache slots are taken.
        if scheduler.chunked_req is None and gate.holds(
            len(scheduler.waiting_queue), len(running_batch.reqs)
        ):
            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
        return original(scheduler, running_batch)

    managers = "sglang.srt.managers"
    place = f"{managers}.scheduler.Scheduler.get_new_batch_prefill"
    HookRegistry.register(place, choose, HookType.AROUND)
    place = f"{managers}.data_parallel_controller.DataParallelController.event_loop"
    HookRegistry.register(place, _dispatch, HookType.REPLACE)


def _dispatch(controller: Any) -> None:
    from sglang.srt.managers.io_struct import sock_recv

    requests = controller.recv_from_tokenizer
    while True:
        controller.soft_watchdog.feed()
        if requests.poll(_WAIT_MS):
            controller._request_dispatcher(sock_recv(requests))
