"""What an episode of an evaluation votes for (`maj@k`): from the Env to the report."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.actors.report import vote_of
from agentrl.envs.env import Env
from agentrl.envs.registry import load_env
from agentrl.errors import EnvError

pytestmark = pytest.mark.slow


def voted(text: str, label: str = "4", *, is_evaluation: bool = True, **args: Any) -> str:
    env = load_env("single-turn")(**args)
    env.is_evaluation = is_evaluation

    async def play() -> None:
        await env.reset(seed=0, task={"input": "q", "label": label})
        await env.score(text)

    anyio.run(play)
    return vote_of(env)


@pytest.mark.parametrize(
    ("rm_type", "text", "vote"),
    [
        (None, " 4 ", "4"),
        ("math", r"it is \boxed{4}.", "4"),
        ("math", "it is 4", ""),
        ("deepscaler", r"<think>hm</think> \boxed{5}", "5"),
        ("gpqa", "the answer is B", "B"),
        ("boxed_f1", r"so \boxed{the Nile}", "the Nile"),
        ("f1", "the Nile", ""),
    ],
)
def test_a_reward_that_ships_reads_the_answer_that_it_scores(
    rm_type: str | None, text: str, vote: str
) -> None:
    assert voted(text, rm_type=rm_type) == vote


def test_a_function_of_the_users_says_what_it_read_or_a_box_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def plain(text, label, task):\n    return 1.0\n"
        "def told(text, label, task):\n    return {'score': 1.0, 'pred': text[-1]}\n"
    )
    assert voted(r"so \boxed{7}", reward="mine.py:plain") == "7"
    assert voted("so 7", reward="mine.py:plain") == ""
    assert voted("so 7", reward="mine.py:told", reward_key="score") == "7"


def test_a_reward_that_is_a_dict_says_what_it_read() -> None:
    assert voted("Answer: 4 dollars", rm_type="dapo", reward_key="score") == "4"


def test_a_long_answer_is_counted_by_its_digest() -> None:
    class Long(Env):
        vote = "a" * 5000

    one, other = Long(), Long()
    other.vote = "a" * 4999 + "b"
    assert len(vote_of(one)) == 32
    assert vote_of(one) == vote_of(Long()) != vote_of(other)


def test_a_vote_that_is_no_text_is_an_error_of_the_env() -> None:
    env = Env()
    env.vote = 4  # type: ignore[assignment]
    with pytest.raises(EnvError, match=r"Env\.vote is 4; it must be text"):
        vote_of(env)


def test_training_counts_no_votes() -> None:
    assert voted("4", is_evaluation=False) == ""


def test_a_hostile_text_votes_in_a_process_of_its_own() -> None:
    """Blanks after a word make the search for a letter think for hours."""
    assert voted("answer" + " " * 200_000, rm_type="gpqa") == ""
