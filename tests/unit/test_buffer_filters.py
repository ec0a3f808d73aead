"""`--buffer-filter-path`: a function of the user's chooses among groups that were given back."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.actors.report import PlayedEpisode
from agentrl.config.args import Args
from agentrl.envs.buffer_filter import BUFFER_FILTERS, chosen
from agentrl.envs.slime_source import require_buffer
from agentrl.envs.slime_stand_in.data_source import RolloutDataSourceWithBuffer
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.errors import ConfigError, EnvError
from agentrl.types import StopReason
from agentrl.user_code import load
from tests.unit.batch_ground import QUESTIONS, Batched, answered, assigned
from tests.unit.rollout_ground import Policy
from tests.unit.test_batches import says
from tests.unit.test_generate_flags import config_of

GROUPS = [[Sample(index=number)] for number in range(3)]


def newest(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> list[Any]:
    """The group that came last."""
    return [buffer.pop()]


def first_alone(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> list[Any]:
    """The first group; the others are given up."""
    (first, *_), buffer[:] = buffer, []
    return [first]


class Bare:
    def __init__(self, args: Any) -> None: ...

    def get_samples(self, num_samples: int) -> list[Any]:
        return []


class Buffered(RolloutDataSourceWithBuffer):
    pass


def none_of_them(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> list[Any]:
    return []


def test_what_is_taken_and_what_is_given_up_are_told_apart() -> None:
    assert chosen(newest, None, GROUPS, 1) == ([2], [])
    assert chosen(first_alone, None, GROUPS, 1) == ([0], [1, 2])
    assert chosen(none_of_them, None, GROUPS, 1) == ([], [])
    assert chosen(lambda a, r, buffer, n: buffer[:n], None, GROUPS, 2) == ([0, 1], [])
    assert len(GROUPS) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda buffer: None, "it returned a NoneType; a list of groups is wanted"),
        (lambda buffer: [list(buffer[0])], "a group that is not in buffer; return the lists that"),
        (lambda buffer: [[]], "a group that is not in buffer"),
        (lambda buffer: [buffer[0], buffer[0]], "it returned a group twice"),
        (lambda buffer: buffer[:3], "it returned 3 groups, and was asked for 2"),
    ],
)
def test_an_answer_that_is_none_is_told_with_its_function(answer: Any, said: str) -> None:
    def mine(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> Any:
        return answer(buffer)

    with pytest.raises(EnvError, match=rf"--buffer-filter-path: .*{said}.*test_buffer_filters"):
        chosen(mine, None, GROUPS, 2)


async def played_with(function: Any, *, kept: int = 0) -> tuple[list[PlayedEpisode], list[Any]]:
    """Three groups, of which a first call gives back all but `kept`, and each later one returns
    those that it gets; and the questions that each call got."""
    calls: list[Any] = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(3 if rollout_id == 0 else 1)
        calls.append([_question(group) for group in groups])
        if rollout_id == 0:
            data_source.add_samples(groups[kept:])
            groups = groups[:kept]
        return [await answered(args, group) for group in groups]

    batched = Batched(generate, batch_size=3, buffer_filter=function)
    return await batched.play(assigned(3), Policy(says)), calls


def _question(group: list[Any]) -> str:
    return next(text for text in QUESTIONS if text in group[0].prompt)


@pytest.mark.anyio
async def test_a_function_chooses_what_is_played_next(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1?", "label": "1"}\n')
    flags = ("--rollout-function-path", "tests.unit.batch_ground:generate_rollout")
    config = config_of(rows, *flags, "--buffer-filter-path", f"{__name__}:newest")
    named = load(BUFFER_FILTERS, str(config.buffer_filter_path))
    played, calls = await played_with(named, kept=1)
    assert [each.report.error for each in played] == [None] * 6
    assert calls == [[*QUESTIONS], [QUESTIONS[2]], [QUESTIONS[1]]]


@pytest.mark.anyio
async def test_without_a_function_the_first_are_played_first() -> None:
    played, calls = await played_with(None, kept=1)
    assert [each.report.error for each in played] == [None] * 6
    assert calls == [[*QUESTIONS], [QUESTIONS[1]], [QUESTIONS[2]]]


@pytest.mark.anyio
async def test_what_it_takes_out_and_does_not_return_is_filtered() -> None:
    played, calls = await played_with(first_alone, kept=1)
    assert [each.report.stop_reason for each in played].count(StopReason.GIVEN_UP) == 2
    assert len(calls) == 2


@pytest.mark.anyio
async def test_what_it_leaves_waits_and_is_given_up_beside_no_other() -> None:
    played, calls = await played_with(none_of_them, kept=1)
    assert [each.report.stop_reason for each in played].count(StopReason.GIVEN_UP) == 4
    assert calls == [[*QUESTIONS], []]


@pytest.mark.anyio
async def test_a_part_of_a_group_is_played_beside_what_it_leaves() -> None:
    calls = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(1)
        if rollout_id == 0:
            data_source.add_samples(groups)
            groups = data_source.get_samples(1)
        calls.append([_question(group) for group in groups])
        return [await answered(args, group) for group in groups]

    batched = Batched(generate, batch_size=2, buffer_filter=none_of_them)
    played = await batched.play(assigned(2)[:-1], Policy(says))
    assert calls[0] == [QUESTIONS[1]]
    assert [each.report.error for each in played][-1] is None


@pytest.mark.anyio
@pytest.mark.parametrize("function", [None, newest])
async def test_an_ask_for_no_group_gives_none_at_once(function: Any) -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        assert data_source.get_samples(0) == data_source.get_samples(-1) == []
        return [await answered(args, group) for group in data_source.get_samples(2)]

    played = await Batched(generate, buffer_filter=function).play(assigned(3), Policy(says))
    assert [each.report.error for each in played] == [None] * 6


def test_the_buffer_of_a_data_source_is_chosen_from_by_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1?", "label": "1"}\n{"input": "2?", "label": "2"}\n')
    mine = tmp_path / "mine.py"
    mine.write_text("def last(args, buffer, num_samples):\n    return [buffer.pop()]\n")
    flags = ("--data-source-path", "slime.rollout.data_source.RolloutDataSourceWithBuffer")
    config = config_of(rows, *flags, "--buffer-filter-path", str(mine))
    source = RolloutDataSourceWithBuffer(Args(config))
    source.add_samples([[Sample(prompt="old")], [Sample(prompt="new")]])
    prompts = [group[0].prompt for group in source.get_samples(2)]
    assert prompts == ["new", "1?"]
    assert [group[0].prompt for group in source.buffer] == ["old"]
    assert len(source.get_samples(0)) == 0
    source.buffer.clear()  # of nothing it is not asked to choose
    assert [group[0].prompt for group in source.get_samples(1)] == ["2?"]


def test_a_group_of_a_buffer_is_given_once_though_the_function_leaves_it_there(
    tmp_path: Path,
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1?", "label": "1"}\n')
    mine = tmp_path / "mine.py"
    mine.write_text("def looks(args, buffer, num_samples):\n    return buffer[:num_samples]\n")
    flags = ("--data-source-path", "slime.rollout.data_source.RolloutDataSourceWithBuffer")
    source = RolloutDataSourceWithBuffer(
        Args(config_of(rows, *flags, "--buffer-filter-path", str(mine)))
    )
    source.add_samples([[Sample(prompt="a")], [Sample(prompt="b")]])
    prompts = [[group[0].prompt for group in source.get_samples(1)] for _ in range(3)]
    assert prompts == [["a"], ["b"], ["1?"]]


def test_a_data_source_without_a_buffer_has_nothing_to_choose_from(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1?", "label": "1"}\n')
    flags = ("--data-source-path", f"{__name__}:Bare", "--buffer-filter-path", f"{__name__}:newest")
    with pytest.raises(ConfigError, match="keeps no groups that were given back; have the class"):
        require_buffer(config_of(rows, *flags))
    require_buffer(config_of(rows, *flags[:1], f"{__name__}:Buffered", *flags[2:]))


def test_a_run_that_gives_no_group_back_refuses_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1?", "label": "1"}\n')
    with pytest.raises(ConfigError, match="any other run puts none back"):
        config_of(rows, "--buffer-filter-path", "mine.py")
    assert config_of(rows, "--buffer-filter-path", "slime.rollout.data_source.pop_first")


def test_another_signature_is_refused_before_the_start(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def choose(buffer):\n    return buffer\n")
    with pytest.raises(ConfigError, match=r"choose\(args, rollout_id, buffer, num_samples\)"):
        load(BUFFER_FILTERS, str(path))
