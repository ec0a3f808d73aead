"""Events to the driver: none is lost while there is room, and what is lost is counted."""

import logging

import pytest

from agentrl.buffer.notification_queue import NotificationQueue
from agentrl.wire.messages import Event


class Driver:
    """A connection that takes `room` events."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.got: list[str] = []

    def send(self, event: Event) -> bool:
        if len(self.got) == self.room:
            return False
        self.got.append(event.kind)
        return True


def test_an_event_that_was_not_taken_is_offered_again_in_its_place() -> None:
    events, driver = NotificationQueue(), Driver(room=2)
    for kind in "abcd":
        events.add(Event(kind))
    events.hand_over(driver.send)
    assert (driver.got, len(events)) == (["a", "b"], 2)
    events.add(Event("e"))
    driver.room = 9
    events.hand_over(driver.send)
    assert (driver.got, len(events)) == (list("abcde"), 0)


def test_dropped_events_are_counted_and_said_once_at_each_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, driver = NotificationQueue(limit=2), Driver(room=9)
    with caplog.at_level(logging.WARNING):
        for kind in "abcde":
            events.add(Event(kind))
        events.hand_over(driver.send)
        events.hand_over(driver.send)
    assert driver.got == ["d", "e"]
    assert events.dropped == 3
    assert [record.message for record in caplog.records] == [
        "2 events wait for the driver: the oldest are dropped until it takes some",
        "the driver is back and has missed 3 events",
    ]
