"""Long texts of tasks, tools and agents: refused unread, or made tokens of beside the loop."""

import threading
from typing import Any

import msgspec
import pytest

from agentrl.actors.demonstration import Demonstrations
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.rollout import Chat
from agentrl.errors import ChatError, EnvError
from agentrl.tokens import QwenFormat, Vocab
from agentrl.tokens.vocab import PlainEncoding
from agentrl.types import EpisodeReport, Outcome, StopReason, Task
from tests.unit.generate_ground import play_function
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, MODEL, Policy
from tests.unit.rollout_ground import play as play_rollout

pytestmark = pytest.mark.anyio

#: As many characters as no context here holds; and some that may fit, but hold up the loop.
HUGE, LONG = "word " * 800_000, "word " * 4_000
WIDE = msgspec.structs.replace(LIMITS, max_context=64_000, max_prompt=60_000)


class WatchedVocab(Vocab):
    """Remembers which threads have encoded a text that is long."""

    threads: set[int]

    def encode_plain(self, text: str) -> PlainEncoding:
        if len(text) >= len(LONG):
            self.threads.add(threading.get_ident())
        return super().encode_plain(text)


def watched(max_tokens: int) -> tuple[QwenFormat, WatchedVocab]:
    vocab = WatchedVocab.from_file(MODEL, max_tokens=max_tokens)
    assert isinstance(vocab, WatchedVocab)
    vocab.threads = set()
    return QwenFormat(vocab), vocab


class CollectiveRequest(Env):
    """Says `prompt`, and then `answer`."""

    prompt = answer = "?"

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(self.prompt)]

    async def step(self, turn: AssistantTurn) -> Step:
        return Step(messages=[Message.user(self.answer)], terminated=turn.index == 1)


async def play_env(chat: QwenFormat, limits: Any = WIDE, **said: str) -> PlayedEpisode:
    env: type[Env] = type("Made", (CollectiveRequest,), said)
    return await Player(EnvEpisodes(env, chat, limits)).play(
        ASSIGNMENT, Policy(["42<|im_end|>"] * 2)
    )


def is_filtered(report: EpisodeReport, *words: str) -> bool:
    return report.outcome is Outcome.FILTERED and all(word in str(report.error) for word in words)


async def test_long_prompts_and_answers_of_an_env_are_encoded_beside_the_loop() -> None:
    chat, vocab = watched(WIDE.max_context)
    report = (await play_env(chat, prompt=LONG)).report
    assert report.outcome is Outcome.DONE
    assert vocab.threads
    report = (await play_env(chat, answer=LONG)).report
    assert report.outcome is Outcome.DONE
    assert threading.get_ident() not in vocab.threads


async def test_a_prompt_that_no_tokens_could_hold_is_refused_unread() -> None:
    chat, vocab = watched(LIMITS.max_context)
    report = (await play_env(chat, LIMITS, prompt=HUGE)).report
    assert is_filtered(report, "4000005 characters", "3000 tokens fit", "--rollout-max-prompt-len")
    assert vocab.threads.isdisjoint({threading.get_ident()})


async def test_an_answer_that_no_tokens_could_hold_ends_the_episode_and_keeps_its_turn() -> None:
    chat, _ = watched(LIMITS.max_context)
    report = (await play_env(chat, LIMITS, answer=HUGE)).report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.CONTEXT_LIMIT)


async def test_long_messages_of_an_agent_are_encoded_beside_the_loop() -> None:
    chat, vocab = watched(WIDE.max_context)

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete([{"role": "user", "content": LONG}])
        return 1.0

    played = await play_rollout(solve, Policy(["42"]), chat=chat, limits=WIDE)
    assert played.report.outcome is Outcome.DONE
    assert vocab.threads
    assert threading.get_ident() not in vocab.threads


async def test_an_agent_s_first_prompt_is_refused_unread_and_a_later_one_is_its_budget() -> None:
    chat, _ = watched(LIMITS.max_context)

    async def at_once(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete([{"role": "user", "content": HUGE}])
        return 1.0

    async def later(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete([{"role": "user", "content": "?"}])
        with pytest.raises(ChatError, match=r"40000\d\d characters") as refused:
            await chat.complete([{"role": "user", "content": HUGE}])
        assert refused.value.code == "context_length_exceeded"
        return 1.0

    report = (await play_rollout(at_once, Policy([]), chat=chat)).report
    assert is_filtered(report, "4000005 characters", "3000 tokens fit", "--rollout-max-prompt-len")
    report = (await play_rollout(later, Policy(["42"]), chat=chat)).report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.CONTEXT_LIMIT)


async def test_a_prompt_that_is_written_for_a_function_is_made_beside_the_loop() -> None:
    chat, vocab = watched(WIDE.max_context)
    prompts = []

    async def generate(args: Any, sample: Any, sampling_params: Any) -> Any:
        prompts.append(sample.prompt)
        raise EnvError("enough")

    task = Task("t", {"input": LONG, "label": "?"})
    assigned = {"task": task}
    await play_function(generate, Policy([]), limits=WIDE, assignment=assigned, chat=chat)
    assert LONG.strip() in prompts[0]
    assert vocab.threads
    assert threading.get_ident() not in vocab.threads


async def test_a_prompt_for_a_function_that_no_tokens_could_hold_is_filtered() -> None:
    chat, _ = watched(LIMITS.max_context)

    async def generate(args: Any, sample: Any, sampling_params: Any) -> Any:
        raise AssertionError("it has no prompt")

    for text in (HUGE, "word " * 10_000):
        task = {"task": Task("t", {"input": text, "label": "?"})}
        report = (await play_function(generate, Policy([]), assignment=task, chat=chat)).report
        assert is_filtered(report, "3000 tokens fit", "--rollout-max-prompt-len")


@pytest.mark.parametrize("text", [LONG, HUGE])
async def test_long_demonstrations_are_written_beside_the_loop_or_filtered(text: str) -> None:
    chat, vocab = watched(WIDE.max_context)
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": "42"}]
    assignment = msgspec.structs.replace(ASSIGNMENT, task=Task("t", {"messages": said}))
    player = Player(Demonstrations(chat, WIDE, key="messages"))
    report = (await player.play(assignment, Policy([]))).report
    if text is LONG:
        assert report.outcome is Outcome.DONE
        assert vocab.threads
    else:
        assert is_filtered(report, "64000 tokens fit", "--rollout-max-context-len")
    assert threading.get_ident() not in vocab.threads


async def test_a_prompt_that_is_a_few_tokens_too_long_is_filtered_by_its_tokens() -> None:
    limits = msgspec.structs.replace(LIMITS, max_prompt=10)
    env: type[Env] = type("Made", (CollectiveRequest,), {"prompt": "word " * 20})
    report = (await Player(EnvEpisodes(env, CHAT, limits)).play(ASSIGNMENT, Policy([]))).report
    assert is_filtered(report, "of task t is too long: at most 10 tokens fit", "and it has")
