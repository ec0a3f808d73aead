"""Ray is left when no thread calls it any more."""

import threading

import pytest

from agentrl.cluster.ray_calls import RayCalls, calls_ray
from agentrl.errors import InfrastructureError


class Asked:
    def __init__(self) -> None:
        self.ray_calls = RayCalls()
        self.answered, self.began = threading.Event(), threading.Event()

    @calls_ray
    def ask(self, word: str, *, twice: bool = False) -> str:
        self.began.set()
        self.answered.wait(60)
        return word * (2 if twice else 1)


def test_a_question_in_progress_is_waited_for_and_a_later_one_refused() -> None:
    asked, answers = Asked(), list[str]()
    thread = threading.Thread(target=lambda: answers.append(asked.ask("a", twice=True)))
    thread.start()
    assert asked.began.wait(60)
    asked.ray_calls.end()
    assert not asked.ray_calls.wait(0.0)
    with pytest.raises(InfrastructureError, match="no call is possible"):
        asked.ask("b")
    asked.answered.set()
    assert asked.ray_calls.wait(60)
    thread.join()
    assert answers == ["aa"]


def test_one_that_failed_is_over_as_well() -> None:
    class FailingAsked(Asked):
        @calls_ray
        def fail(self) -> None:
            raise KeyError("gone")

    asked = FailingAsked()
    with pytest.raises(KeyError):
        asked.fail()
    asked.ray_calls.end()
    assert asked.ray_calls.wait(0.0)
