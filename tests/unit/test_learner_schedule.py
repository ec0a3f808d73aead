"""The learner's order, played by hand: what follows what, and what an interruption leaves out."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.learner.question import Answer, AskLease, AskPush, StopRequested
from agentrl.learner.schedule import (
    End,
    EndSave,
    LoopSettings,
    Push,
    Save,
    SaveEvalWeights,
    Schedule,
    Settle,
    Step,
    StepAnswer,
    Tell,
    Train,
)
from agentrl.types import LeaseHeader, VersionRow
from agentrl.wire.messages import (
    AnnounceVersion,
    Lease,
    NoMoreLeases,
    PushDone,
    PushGranted,
    Republish,
    Retire,
    Stepped,
)

EVERY = LoopSettings(update_weights_interval=1, save_interval=1)
OVER = "the source is exhausted"


class Ckpt(msgspec.Struct, frozen=True):
    """A checkpoint that was found."""

    iteration: int
    version: int
    recipe: int = 0


def played(
    settings: LoopSettings,
    interruptions: Sequence[Answer | None] = (),
    *,
    leases: int = 3,
    marks_last: bool = False,
    versions: Sequence[VersionRow] = (),
    saved: Ckpt | None = None,
    recipe: int = 0,
    stepped: int = 0,
    writes: Sequence[bool] = (),
) -> list[Step]:
    """The steps up to End. `interruptions` are answers to questions in order; None, and the end of
    them: as asked, over so many leases. `writes`: whether a checkpoint that is asked after, without
    waiting, is whole; at the end of them it is."""
    waiting = list(interruptions)
    looks = list(writes)

    def answered(step: Step) -> StepAnswer:
        match step:
            case AskLease(number):
                if waiting and (word := waiting.pop(0)) is not None:
                    return word
                if number > leases:
                    return NoMoreLeases(number - 1, OVER)
                return Lease(LeaseHeader(number, [], last=marks_last and number == leases))
            case AskPush(version):
                word = waiting.pop(0) if waiting else None
                return word or PushGranted(version)
            case Train(header):
                return Stepped(header.number, False, 0.0, 0.0, 0.0)
            case Push():
                return {}
            case EndSave(waits):
                return waits or (looks.pop(0) if looks else True)
            case _:
                return None

    steps = Schedule(settings, versions, saved, recipe, stepped).steps()
    done = [next(steps)]
    while not isinstance(done[-1], End):
        done.append(steps.send(answered(done[-1])))
    return done


def brief(steps: Sequence[Step]) -> str:
    """One word a step; what is told by its number."""
    return " ".join(_word(step) for step in steps)


def _word(step: Step) -> str:
    match step:
        case Tell(AnnounceVersion(row)):
            return f"announce{row.version}"
        case Tell(PushDone(row)):
            return f"published{row.version}"
        case Tell(Stepped(number)):
            return f"stepped{number}"
        case Tell(Retire(through)):
            return f"retire{through}"
        case Push(row):
            return f"push{row.version}"
        case AskLease(number) | AskPush(number) | Train(LeaseHeader(number)) | Save(number):
            return f"{type(step).__name__.lower()}{number}"
        case EndSave(waits):
            return "wait" if waits else "look"
        case SaveEvalWeights(row):
            return f"evaluate{row.version}@{row.iteration}"
        case _:
            return type(step).__name__.lower()


def test_an_iteration_is_trained_reported_published_saved_and_then_the_one_before_is_retired() -> (
    None
):
    assert brief(played(EVERY, leases=2, marks_last=True)) == (
        "announce0 settle push0 published0"
        " asklease1 train1 stepped1 announce1 settle push1 published1 settle save1"
        " asklease2 train2 stepped2 announce2 settle push2 published2"
        " settle save2 savemodel retire2 settle end"
    )


def test_intervals_leave_out_pushes_and_saves_and_the_end_makes_up_for_them() -> None:
    settings = LoopSettings(update_weights_interval=2, save_interval=2, keeps_models=True)
    assert brief(played(settings, leases=5)) == (
        "announce0 settle push0 published0"
        " asklease1 train1 stepped1"
        " asklease2 train2 stepped2 announce1 settle push1 published1 settle save2 savemodel"
        " asklease3 train3 stepped3"
        " asklease4 train4 stepped4 announce2 settle push2 published2 settle save4 retire2"
        " savemodel"
        " asklease5 train5 stepped5"
        " asklease6 announce3 settle push3 published3 settle save5 savemodel retire5 settle end"
    )


BEHIND = LoopSettings(
    update_weights_interval=9, save_interval=1, has_engines=False, writes_behind=True
)


def test_a_checkpoint_that_is_written_beside_training_counts_when_it_is_whole() -> None:
    assert brief(played(BEHIND, leases=3, marks_last=True, writes=[True, False])) == (
        "published0 asklease1 train1 stepped1 settle save1"
        " asklease2 train2 stepped2 look settle save2"
        " asklease3 train3 stepped3 look published1"
        " wait retire1 settle save3 savemodel wait retire3 settle end"
    )


def test_a_stop_waits_for_the_checkpoint_and_keeps_the_one_before_it() -> None:
    assert brief(played(BEHIND, [None, None, StopRequested()], writes=[False])) == (
        "published0 asklease1 train1 stepped1 settle save1"
        " asklease2 train2 stepped2 look wait settle save2"
        " asklease3 wait retire1 settle save2 savemodel wait retire1 settle end"
    )


def test_without_engines_a_version_is_a_number_alone_and_nobody_is_asked() -> None:
    settings = msgspec.structs.replace(EVERY, has_engines=False)
    assert brief(played(settings, [Republish(1)], leases=1)) == (
        "published0 asklease1 asklease1 train1 stepped1 published1 settle save1"
        " asklease2 settle save1 savemodel retire1 settle end"
    )


def test_a_push_in_turn_asks_first_and_the_one_at_the_end_too() -> None:
    settings = LoopSettings(update_weights_interval=2, save_interval=9, asks_before_push=True)
    steps = played(settings)
    assert [step.version for step in steps if isinstance(step, AskPush)] == [1, 2]
    assert "asklease4 askpush2 announce2 settle push2" in brief(steps)


def test_a_request_to_stop_saves_and_pushes_nothing_and_keeps_a_checkpoint_to_fall_back_to() -> (
    None
):
    stopped = played(EVERY, [None, None, StopRequested()])
    assert brief(stopped).endswith(
        "save2 retire1 asklease3 settle save2 savemodel retire1 settle end"
    )
    assert stopped[-1] == End(2, 2, "the learner was asked to stop")
    held = played(msgspec.structs.replace(EVERY, asks_before_push=True), [None, StopRequested()])
    assert "stepped1 askpush1 settle save1" in brief(held)
    assert brief(played(EVERY, [StopRequested()])) == (
        "announce0 settle push0 published0 asklease1 settle end"
    ), "nothing was learnt"


def test_engines_that_come_late_get_what_is_trained_or_the_same_version_again() -> None:
    settings = LoopSettings(update_weights_interval=2, save_interval=9)
    assert "asklease1 push0 asklease1 train1" in brief(played(settings, [Republish(1)]))
    again = brief(played(settings, [None, Republish(1)]))
    assert (
        "asklease2 announce1 settle push1 published1 asklease2 train2 stepped2 announce2" in again
    )


@pytest.mark.parametrize(
    ("versions", "saved", "first"),
    [
        ([], None, VersionRow(0, None, 0)),
        ([VersionRow(0, None, 0), VersionRow(1, 0, 4)], None, VersionRow(2, 0, 0)),
        ([VersionRow(0, None, 0), VersionRow(1, 0, 4)], Ckpt(4, 1), VersionRow(2, 1, 4)),
    ],
)
def test_a_learner_begins_with_a_version_of_its_own(
    versions: list[VersionRow], saved: Ckpt | None, first: VersionRow
) -> None:
    steps = played(EVERY, versions=versions, saved=saved, leases=6)
    assert steps[0] == Tell(AnnounceVersion(first))
    assert next(step for step in steps if isinstance(step, AskLease)).number == first.iteration + 1


@pytest.mark.parametrize(
    ("saved", "recipe"),
    [
        (Ckpt(4, 1, 8), 7),  # it holds what the version holds
        (Ckpt(5, 1, 7), 7),
        (Ckpt(5, 1, 8), 0),  # an iteration since then is of another
    ],
)
def test_what_lies_between_a_version_and_a_checkpoint_is_of_the_checkpoint_s_recipe(
    saved: Ckpt, recipe: int
) -> None:
    versions = [VersionRow(0, None, 0, 8), VersionRow(1, 0, 4, 8)]
    assert Schedule(EVERY, versions, saved, 7).newest.recipe == recipe


def _goes_on(
    stepped: int,
    *interruptions: Answer | None,
    recipe: int = 7,
    shares_devices: bool = False,
    interval: int = 1,
) -> str:
    """A learner after versions 0 to 6 of one recipe, and its first checkpoint."""
    settings = LoopSettings(
        update_weights_interval=interval,
        save_interval=2,
        max_staleness=1,
        shares_devices=shares_devices,
    )
    steps = played(
        settings,
        interruptions,
        leases=stepped + 2,
        versions=[VersionRow(v, v - 1 if v else None, v, 7) for v in range(7)],
        saved=Ckpt(1, 1, 7),
        recipe=recipe,
        stepped=stepped,
    )
    return brief(steps)


@pytest.mark.parametrize("interval", [1, 4])
def test_more_than_tokens_may_be_old_is_trained_once_more_before_anything_is_pushed(
    interval: int,
) -> None:
    said = _goes_on(6, interval=interval)
    assert said.startswith("asklease2 train2 stepped2 settle save2 retire1 asklease3 train3 stepp")
    assert "stepped6 announce7 settle push7 published7 settle save6 retire4" in said
    assert ("stepped7 announce8 settle push8" in said) == (interval == 1)


def test_an_engine_that_comes_late_gets_what_there_is() -> None:
    said = _goes_on(6, None, Republish(1))
    assert "save2 retire1 asklease3 announce7 settle push7 published7 asklease3 train3" in said
    assert "stepped6 announce8 settle push8" in said
    assert said.count("push") == 4


def test_a_stop_before_the_first_push_saves_under_the_version_before() -> None:
    versions = [VersionRow(v, v - 1 if v else None, v, 7) for v in range(7)]
    settings = LoopSettings(update_weights_interval=1, save_interval=9, max_staleness=1)
    steps = played(
        settings,
        [None, StopRequested()],
        versions=versions,
        saved=Ckpt(1, 1, 7),
        recipe=7,
        stepped=6,
    )
    assert brief(steps) == (
        "asklease2 train2 stepped2 asklease3 settle save2 savemodel retire1 settle end"
    )
    assert Save(2, 1, 7) in steps
    assert steps[-1] == End(2, 1, "the learner was asked to stop")


@pytest.mark.parametrize(
    ("stepped", "changed"), [(6, {"recipe": 8}), (6, {"shares_devices": True})]
)
def test_by_another_recipe_and_on_shared_devices_it_pushes_first(
    stepped: int, changed: dict[str, Any]
) -> None:
    assert "train" not in _goes_on(stepped, **changed).partition("push7")[0]


def test_where_little_is_lost_it_pushes_first() -> None:
    versions = [VersionRow(v, v - 1 if v else None, v, 7) for v in range(3)]
    steps = played(EVERY, versions=versions, saved=Ckpt(2, 2, 7), recipe=7, stepped=2)
    assert brief(steps).startswith("announce3 settle push3")


def test_one_that_goes_on_from_a_checkpoint_can_fall_back_to_it() -> None:
    versions = [VersionRow(0, None, 0), VersionRow(1, 0, 4)]
    steps = brief(played(EVERY, versions=versions, saved=Ckpt(4, 1), leases=6))
    assert "save5 retire4 asklease6" in steps


_words = st.lists(st.sampled_from([None, None, None, Republish(1), StopRequested()]), max_size=12)


@given(
    _words,
    st.builds(
        LoopSettings,
        update_weights_interval=st.integers(1, 3),
        save_interval=st.integers(1, 3),
        has_engines=st.booleans(),
        asks_before_push=st.booleans(),
        keeps_models=st.booleans(),
        writes_behind=st.booleans(),
    ),
    st.integers(0, 6),
    st.booleans(),
    st.lists(st.booleans(), max_size=4),
)
def test_the_order_holds_whatever_comes_between(
    words: list[Answer | None],
    settings: LoopSettings,
    leases: int,
    marks_last: bool,
    writes: list[bool],
) -> None:
    trained = reported = 0
    newest = announced = -1
    is_settled, saved, begun = True, [0], None
    looks = list(writes)
    steps = played(settings, words, leases=leases, marks_last=marks_last, writes=writes)
    for step in steps:
        match step:
            case Train(header):
                assert header.number == trained + 1 == reported + 1
                trained = header.number
            case Tell(Stepped(number)):
                assert number == trained
                reported = number
            case Tell(AnnounceVersion(row)):
                assert (row.version, row.iteration) == (newest + 1, reported)
                announced = row.version
            case Push(row):
                assert row.version == announced or not settings.has_engines
                assert is_settled or row.version == newest, "a version that could be given twice"
            case Tell(PushDone(row, through)):
                assert row.iteration == through == reported
                newest = row.version
            case Save(iteration, version):
                assert is_settled, "a checkpoint that rests on what could be lost"
                assert (iteration, version) == (reported, newest)
                assert begun is None, "two checkpoints are written at once"
                if settings.writes_behind:
                    begun = iteration
                else:
                    saved.append(iteration)
            case EndSave(waits):
                assert begun is not None
                if waits or not looks or looks.pop(0):
                    saved.append(begun)
                    begun = None
            case Tell(Retire(through)):
                assert through in saved, "what a checkpoint covers is forgotten before it is whole"
                is_over = through == saved[-1]
                assert not is_over or reported == through
        is_settled = isinstance(step, Settle) or (is_settled and not isinstance(step, Tell))
    assert isinstance(steps[-1], End)
    assert begun is None, "nobody waits for the last checkpoint"
    assert is_settled, "the buffer has all that it was told"
