"""A thread that scores answers, one call at a time.

    asked -> waits -> scored, with the others that wait -> told

A reward model may load weights and compute for long; the event loop, by which a worker shows that
it is alive, goes on meanwhile. All calls are made by one thread, because libraries keep settings
for each (`torch.set_grad_enabled`). Answers that wait while a call is under way are scored by the
next call together, MAX_BATCH at most. The answers of a group are a call of their own, for the model
may compare them. Where a call for several answers fails, each is tried by itself: an answer that
cannot be scored fails alone.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

__all__ = ["MAX_BATCH", "ModelThread", "Score"]

#: Answers that one call scores, unless they are those of a group.
MAX_BATCH = 64

#: Called with prompts and responses: what each response is worth.
Score = Callable[[list[Any], list[str]], list[Any]]


class _Told(NamedTuple):
    """What came of a request: a future takes no StopIteration as its exception."""

    worths: list[Any]
    error: BaseException | None = None


class _Request(NamedTuple):
    prompts: Sequence[Any]
    responses: Sequence[str]
    is_group: bool
    told: "Future[_Told]"


class ModelThread:
    """The thread that calls `score`. It ends with the process."""

    def __init__(self, name: str, score: Score) -> None:
        self._score = score
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def ask(
        self, prompts: Sequence[Any], responses: Sequence[str], *, is_group: bool
    ) -> list[Any]:
        """What the responses are worth. Raises what `score` raises."""
        request = _Request(prompts, responses, is_group, Future())
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        told = await asyncio.wrap_future(request.told)
        if told.error is not None:
            raise told.error
        return told.worths

    def _work(self) -> None:
        while True:
            batch = [each for each in self._next() if each.told.set_running_or_notify_cancel()]
            if batch:
                self._tell(batch)

    def _next(self) -> list[_Request]:
        """The requests of the next call. Waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            batch = [self._waiting.popleft()]
            while self._waiting and len(batch) < MAX_BATCH:
                if batch[0].is_group or self._waiting[0].is_group:
                    break
                batch.append(self._waiting.popleft())
        return batch

    def _tell(self, batch: Sequence[_Request]) -> None:
        told = self._told(batch)
        if told.error is not None and len(batch) > 1:
            for request in batch:
                self._tell([request])
            return
        worths = iter(told.worths)
        for request in batch:
            own = [] if told.error else [next(worths) for _ in request.responses]
            request.told.set_result(_Told(own, told.error))

    def _told(self, batch: Sequence[_Request]) -> _Told:
        prompts = [prompt for request in batch for prompt in request.prompts]
        responses = [response for request in batch for response in request.responses]
        try:
            return _Told(self._score(prompts, responses))
        except BaseException as error:  # whatever it is, it is the user's
            return _Told([], error)
