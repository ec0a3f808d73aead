"""Offline evaluation of the default job: forced searches, and sets."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.envs.search_r1 import eval_tasks
from agentrl.tokens.formats.load import load_format
from agentrl.types import Task
from scripts.default_job import evaluate, offline, places

pytestmark = pytest.mark.anyio


CHAT = load_format("qwen", places.MODEL_DIR)
CALL = offline.FORCED + 'capital of France"}}\n</tool_call>'
ANSWER = "<answer> Paris </answer>"
END = "<|im_end|>"


class ScriptedPolicy(offline.Policy):
    """Writes given turns, the same to every prompt; a forced turn is completed to a search."""

    def __init__(self, *turns: str) -> None:
        self.chat = CHAT
        self.asked: list[tuple[list[str], float, int]] = []
        self._turns = iter(turns)

    def turns(
        self, prompts: Sequence[list[int]], temperature: float, max_new_tokens: int
    ) -> list[list[int]]:
        self.asked.append(
            ([CHAT.vocab.decode(ids) for ids in prompts], temperature, max_new_tokens)
        )
        turn = CHAT.vocab.encode_trusted(next(self._turns))
        return [list(turn) for _ in prompts]


def question(answer: str = "Paris", hops: int = 1) -> Task:
    row = {"question": "What is the capital of France?", "answer": answer}
    return Task(id="t", row=row | {"relations": ["capital"] * hops})


async def play(policy: ScriptedPolicy, *tasks: Task, **how: Any) -> list[Any]:
    played: list[Any] = await offline.play(policy, list(enumerate(tasks)), 0.0, **how)
    return played


def test_the_forced_prefix_has_the_tokens_of_a_call_that_the_model_wrote_itself() -> None:
    prefix, whole = CHAT.vocab.encode_trusted(offline.FORCED), CHAT.vocab.encode_trusted(CALL)
    assert whole[: len(prefix)] == prefix


async def test_a_forced_episode_searches_first_and_is_then_free() -> None:
    query = 'capital of France"}}\n</tool_call>' + END
    policy = ScriptedPolicy(query, ANSWER + END)
    (played,) = await play(policy, question(), force_search=True)
    (first, _, room), (second, _, later) = policy.asked
    assert first[0].endswith("assistant\n" + offline.FORCED)
    assert second[0].endswith("assistant\n")
    assert CALL in second[0]
    assert " The capital of France is Paris." in second[0]
    # the prefix counts as sampled: a forced turn may be no longer than a free one
    assert room == later - len(CHAT.vocab.encode_trusted(offline.FORCED))
    assert (played.reward, played.searches, played.malformed) == (1.0, 1, False)
    assert CALL + END in CHAT.vocab.decode(played.ids)


async def test_an_episode_that_is_not_forced_may_answer_at_once() -> None:
    policy = ScriptedPolicy(ANSWER + END)
    right, wrong = await play(policy, question(), question("London"))
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert (right.searches, right.finished, len(policy.asked)) == (0, True, 1)


async def test_a_turn_that_was_cut_ends_the_episode_as_in_the_job() -> None:
    policy = ScriptedPolicy(CALL)
    (played,) = await play(policy, question())
    assert (played.finished, played.malformed, played.reward) == (True, True, 0.0)
    assert len(policy.asked) == 1


async def test_an_episode_that_searches_for_ever_is_unfinished() -> None:
    policy = ScriptedPolicy(*[CALL + END] * offline.MAX_TURNS)
    (played,) = await play(policy, question())
    assert (played.finished, played.searches) == (False, offline.MAX_TURNS)


async def test_a_score_has_means_by_hops_and_an_interval() -> None:
    policy = ScriptedPolicy(ANSWER + END)
    tasks = [question(), question(hops=2), question("London"), question("London", hops=2)]
    score = evaluate.summarize("heldout", 0.0, await play(policy, *tasks, question()))
    assert (score.episodes, score.exact_match) == (5, 0.6)
    assert (score.one_hop, score.two_hop) == pytest.approx((2 / 3, 0.5))
    assert (score.low, score.high) == pytest.approx((0.2307, 0.8824), abs=1e-4)


async def test_forced_play_is_a_row_of_its_own() -> None:
    query = 'capital of France"}}\n</tool_call>' + END
    policy = ScriptedPolicy(ANSWER + END, query, ANSWER + END)
    found = await evaluate.evaluate(policy, {"hard": [question()]}, force_search=True)
    assert [(score.questions, score.searched) for score in found.scores] == [
        ("hard", 0.0),
        ("hard forced", 1.0),
    ]
    assert found.groups_with_signal is None


async def test_the_signal_is_the_share_of_groups_whose_rewards_differ() -> None:
    policy = ScriptedPolicy(ANSWER + END)
    tasks = [question()] * 8 + [question()] * 7 + [question("London")]
    found = await evaluate.evaluate(policy, {"train": tasks}, force_search=True)
    assert [(score.questions, score.temperature) for score in found.scores] == [("train", 1.0)]
    assert found.groups_with_signal == 0.5


def test_the_sets_to_play_can_be_chosen_and_others_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert evaluate.parse([]).sets == ["heldout", "hard", "train"]
    assert evaluate.parse(["--sets", "hard"]).sets == ["hard"]
    with pytest.raises(SystemExit):
        evaluate.parse(["--sets", "easy"])
    assert "invalid choice: 'easy'" in capsys.readouterr().err


async def test_the_shipped_model_plays_and_searches_when_it_is_forced() -> None:
    policy = offline.Policy(places.MODEL_DIR)
    tasks = eval_tasks("heldout")
    numbered = [(number, tasks[number]) for number in (2, 6, 14)]
    played = await offline.play(policy, numbered, 0.0, force_search=True)
    assert [episode.task.id for episode in played] == [task.id for _, task in numbered]
    assert all("assistant\n" + offline.FORCED in CHAT.vocab.decode(e.ids) for e in played)
    assert all(episode.searches >= 1 for episode in played)
    hops = [len(episode.task.row["relations"]) for episode in played]
    assert hops == [1, 2, 1]
