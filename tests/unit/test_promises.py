"""What becomes of each promise of slime's documentation is told as it is."""

import pytest

from agentrl.config import answers
from scripts.promises import WALK, Promise, documents, judged
from tests.unit.answer_evidence import is_there, only_refuses

PROMISES = [
    pytest.param(promise, id=f"{document.name}: {promise.says}")
    for document in documents()
    for promise in document.promises
]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_an_answer_and_a_test_that_shows_it(promise: Promise) -> None:
    one = judged(promise)
    if one.state == "works":
        assert is_there(one.test), f"there is no test {one.test!r}"
        # That all rows are walked shows of a flag that it is already so, and no more.
        assert one.why or one.test != WALK, "name the test that shows it"
        assert one.test == WALK or not only_refuses(one.test)
    else:
        assert one.why
        assert is_there(one.test) if one.test else promise.not_yet or promise.refused


def test_every_promise_of_the_documents_is_there() -> None:
    assert len(PROMISES) == 150


@pytest.mark.parametrize(
    ("promise", "state", "why"),
    [
        (Promise("", "", given="--colocate"), "works", ""),
        (Promise("", "", given="--micro-batch-size 1"), "works", "micro-batches are packed"),
        (Promise("", "", given="--megatron-deepgemm-forward-modules x"), "not yet", "for kernels"),
        (Promise("", "", given="--lr 1 --no-save-optim"), "refused", "needs the state of its opt"),
        (Promise("", "", given="--advantage-estimator"), "refused", "needs a value"),
        (Promise("", "", waits="vision"), "not yet", answers.missing()["vision"].what),
        (Promise("", "", refused="rocm"), "refused", "ROCm"),
    ],
)
def test_the_command_line_says_what_becomes_of_a_flag(
    promise: Promise, state: str, why: str
) -> None:
    one = judged(promise)
    assert one.state == state
    assert why in one.why


def test_a_test_that_is_not_there_is_found() -> None:
    here = "tests/unit/test_promises.py"
    assert is_there(f"{here}::test_a_test_that_is_not_there_is_found")
    assert not is_there(f"{here}::test_of_something_else")
    assert not is_there(f"{here}::PROMISES")
    assert not is_there("tests/unit/test_nothing.py::test_a_test_that_is_not_there_is_found")
