"""Episodes whose tokens a served teacher is asked about."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.report import require_sendable
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Credit
from agentrl.columns import COLUMNS, TEACHER_LOGPROBS
from agentrl.config.run import RunConfig
from agentrl.errors import EngineError
from agentrl.learner.batch import BatchRules, build_sequence
from agentrl.learner.plan import PlannedRow
from agentrl.learner.rows import decode_trajectory
from agentrl.lineage import Lineage
from agentrl.tokens import Vocab
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.types import Outcome, PayloadRef, SpanKind, TrajectoryRow, VersionRow
from tests.unit.played_episodes import ASSIGNMENT, LIMITS, ScriptedClient
from tests.unit.teacher_server import logprob_of
from tests.unit.test_actors_segments import TURNS, Asker

pytestmark = pytest.mark.anyio

PLACES = {name: place for place, name in enumerate(COLUMNS)}
WIDTH = len(COLUMNS) + 1


class Told:
    """A `Teacher` that is there, or that is not."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self.num_asked = 0

    async def logprobs(self, ids: Sequence[int], first: int) -> list[float]:
        self.num_asked += 1
        if self._failure is not None:
            raise self._failure
        return [logprob_of(ids, place) for place in range(first, len(ids))]


async def played(vocab: Vocab, teacher: Told, assignment: Any = ASSIGNMENT) -> Any:
    player = Player(EnvEpisodes(Asker, StrippedQwen3Format(vocab), LIMITS), teacher=teacher)
    return await player.play(assignment, ScriptedClient(*TURNS, vocab=vocab))


async def test_sampled_tokens_get_what_the_teacher_says_of_them(qwen_vocab: Vocab) -> None:
    """In each segment, and as the learner of `--use-opd --opd-type sglang` then has them."""
    found = await played(qwen_vocab, Told())
    require_sendable(found)
    assert len(found.report.trajectories) == 3
    assert len(found.columns) == 3 * WIDTH
    for number, meta in enumerate(found.report.trajectories):
        assert meta.columns == (TEACHER_LOGPROBS,)
        own: list[array[Any]] = found.columns[number * WIDTH :][:WIDTH]
        ids, kinds, teacher = own[PLACES["tokens"]], own[PLACES["kinds"]], own[-1]
        expected = [
            logprob_of(ids, place) if kind == SpanKind.SAMPLED else TEACHER_LOGPROBS.fill
            for place, kind in enumerate(kinds)
        ]
        assert teacher == array("f", expected)


async def test_a_teacher_that_fails_leaves_no_trajectory(qwen_vocab: Vocab) -> None:
    """An engine that failed: the buffer has the episode played again."""
    found = await played(qwen_vocab, Told(EngineError("the teacher is gone")))
    assert found.report.outcome is Outcome.ENGINE_ERROR
    assert "the teacher is gone" in str(found.report.error)
    assert found.report.trajectories == []
    assert found.columns == []


async def test_a_teacher_is_not_asked_about_evaluations(qwen_vocab: Vocab) -> None:
    teacher = Told()
    assignment = msgspec.structs.replace(ASSIGNMENT, evaluation="held")
    assert (await played(qwen_vocab, teacher, assignment)).report.outcome is Outcome.DONE
    assert teacher.num_asked == 0


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_token_that_no_teacher_was_asked_about_is_not_trained(
    is_told: bool, qwen_vocab: Vocab
) -> None:
    """It was played for a run without a teacher, which then goes on with one. What fills its column
    is no log-probability."""
    assert TEACHER_LOGPROBS.fill > 0
    found = await played(qwen_vocab, Told())
    meta = msgspec.structs.replace(
        found.report.trajectories[0], columns=(TEACHER_LOGPROBS,) if is_told else ()
    )
    row = TrajectoryRow(ASSIGNMENT.id, meta, PayloadRef("x", 1, 0, 0, 0))
    algorithm = load_algorithm(RunConfig(use_opd=True, opd_type="sglang", rm_url="http://x"))
    lineage = Lineage([VersionRow(v, v - 1 if v else None, v) for v in range(9)])
    rules = BatchRules(2, lineage, algorithm)
    trajectory = decode_trajectory(row, found.columns[:WIDTH], (TEACHER_LOGPROBS,))
    sequence = build_sequence(PlannedRow(row, Credit(1.0), 1.0, 0), trajectory, rules)
    assert sequence.counts.num_trained == (meta.num_sampled if is_told else 0)
    assert sequence.counts.num_masked == (0 if is_told else meta.num_sampled)
