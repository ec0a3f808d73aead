"""What becomes of each promise of slime's documentation is told as it is."""

import pytest

from agentrl.config import answers
from scripts.promises import WALK, Promise, documents, judged
from tests.unit.answer_evidence import exercises, is_there, may_be_handed_on, mentions, only_refuses

HERE = "tests/unit/test_promises.py"
PROMISES = [
    pytest.param(promise, id=f"{document.name}: {promise.says}")
    for document in documents()
    for promise in document.promises
]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_an_answer_and_a_test_that_shows_it(promise: Promise) -> None:
    one = judged(promise)
    if one.state == "works":
        # That all rows are walked shows of a flag that it is already so, and no more.
        assert one.why or {*one.tests} - {WALK}, "name the test that shows it"
        assert not [test for test in one.tests if test != WALK and only_refuses(test)]
    else:
        assert one.why
        assert one.tests or promise.not_yet or promise.refused


def shows(test: str, name: str) -> bool:
    """Whether the code of the test has what a promise names: a flag, or another word."""
    if name.startswith("--"):
        return exercises(test, name, is_handed_on=may_be_handed_on(name))
    return mentions(test, name)


@pytest.mark.parametrize("promise", PROMISES)
def test_what_a_promise_names_stands_in_its_tests_and_in_each_of_them_some_of_it(
    promise: Promise,
) -> None:
    names, tests = [*promise.flags, *promise.names], judged(promise).tests
    for test in tests:
        assert is_there(test), f"there is no test {test!r}"
        assert any(shows(test, name) for name in names), f"{test} has none of {names}"
    for name in names if tests else ():
        assert any(shows(test, name) for test in tests), f"{name} stands in none of {tests}"


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


def test_a_test_of_something_else_is_found() -> None:
    learner, engines = (
        f"tests/unit/test_slime_meanings.py::test_{name}"
        for name in (
            "the_learner_has_a_rank_for_each_gpu_of_its_nodes",
            "engines_share_out_the_gpus_of_rollouts",
        )
    )
    assert shows(learner, "--actor-num-nodes")
    assert not shows(learner, "--rollout-num-gpus")
    assert shows(engines, "--rollout-num-gpus")
    assert mentions(engines, "num_engines")
    assert not mentions(engines, "num_learner_ranks")
    both = judged(Promise("", "", given="--actor-num-nodes 2 --rollout-num-gpus 8"))
    assert both.tests == (learner, engines)


#: As code makes them, and not as a test writes them.
NUMBERS = [str(number) for number in (1, 2)]


@pytest.mark.parametrize("case", NUMBERS)
def test_a_case_of_a_test_is_named_in_brackets(case: str) -> None:
    test = f"{HERE}::test_a_case_of_a_test_is_named_in_brackets"
    assert is_there(f"{test}[{case}]")
    assert not is_there(f"{test}[0]")
    assert mentions(test, case)
    assert mentions(f"{test}[1]", case) is (case == "1")


def test_a_test_that_is_not_there_is_found() -> None:
    assert is_there(f"{HERE}::test_a_test_that_is_not_there_is_found")
    assert not is_there(f"{HERE}::test_of_something_else")
    assert not is_there(f"{HERE}::PROMISES")
    assert not is_there("tests/unit/test_nothing.py::test_a_test_that_is_not_there_is_found")
