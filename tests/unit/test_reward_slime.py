"""`--custom-rm-path` in slime's signatures: of one answer, of a group, and as a reward model."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.scoring import scored
from agentrl.config.args import Args
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.registry import load_env
from agentrl.envs.reward_input import RewardInput
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.slime_rewards import OfSample, RewardSample
from agentrl.errors import ConfigError, EnvError
from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.wire.messages import ScoreGroup
from tests.unit.played_episodes import ASSIGNMENT, CHAT, LIMITS, ScriptedClient

pytestmark = pytest.mark.anyio

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
REWARDS = """
SEEN = []

async def one(args, sample, **kwargs):
    assert sample.status is sample.Status.COMPLETED, sample.status
    SEEN.append((sample.prompt, sample.response, sample.label, sample.metadata))
    return {"score": len(sample.response) / args.n_samples_per_prompt, "acc": 1}

async def ranked(args, samples, **kwargs):
    lengths = sorted(len(sample.response) for sample in samples)
    return [lengths.index(len(sample.response)) / len(samples) for sample in samples]

def ours(texts, label, task):
    return [float(text == label) - len(texts) for text in texts]

async def few(args, samples):
    return [1.0]

async def down(args, samples):
    raise ConnectionError("the judge is away")

async def reads_tokens(args, sample):
    SEEN.append((sample.tokens, sample.response_length))
    return sample.response_length

async def ranked_by_tokens(args, samples):
    return [len(sample.tokens) for sample in samples]

class CustomRewardModel:
    made = 0

    def __init__(self, args, model_path="weights"):
        type(self).made += 1
        self.scale = args.n_samples_per_prompt

    def compute_reward(self, prompts, responses):
        return [len(p) + self.scale * len(r) for p, r in zip(prompts, responses)]

async def shortest(args, samples, **kwargs):
    least = min(sample.response_length for sample in samples)
    return [float(sample.response_length == least) for sample in samples]

class Demanding:
    def __init__(self, model_path):
        pass

    def compute_reward(self, prompts, responses):
        return [0.0 for _ in prompts]
"""
ROW = {"input": "2+2?", "label": "4", "metadata": {"level": 3}}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    Path("rows.jsonl").write_text('{"input": "q", "label": "5"}\n')


def env_of(flags: str) -> SingleTurnEnv:
    """As a worker of a run with these flags makes it."""
    base = f"--hf-checkpoint {MODEL} --prompt-data rows.jsonl --n-samples-per-prompt 4"
    words = f"{base} --rollout-max-response-len 64 --device cpu {flags}".split()
    config = parse(words, "train_async").config
    env = load_env(str(config.env))(**config.env_args)
    Env.bind(env, EnvContext(run_flags=config))
    assert isinstance(env, SingleTurnEnv)
    return env


async def said(env: SingleTurnEnv, text: str, reasoning: str = "") -> float:
    await env.reset(seed=0, task=ROW)
    return (await env.step(AssistantTurn(text, [], None, "stop", 0, reasoning))).reward


def group(*answers: str) -> ScoreGroup:
    episodes = [
        EpisodeSummary(
            n, Outcome.DONE, StopReason.TERMINATED, 0.0, {}, answer, sampled=9 - len(answer)
        )
        for n, answer in enumerate(answers)
    ]
    return ScoreGroup(ASSIGNMENT.id.group, Task("t", dict(ROW)), episodes)


async def judged(flags: str, *answers: str) -> list[float]:
    """The rewards of a group of answers to ROW, as a worker finds them."""
    order = await scored(group(*answers), lambda: env_of(flags), LIMITS, pause_s=0.0)
    return [episode.reward for episode in order.episodes]


async def test_a_function_of_slimes_scores_an_answer() -> None:
    env = env_of("--custom-rm-path mine.py:one --reward-key score")
    assert await said(env, "four", "hm") == len("<think>\nhm\n</think>\n\nfour") / 4
    code: Any = __import__("sys").modules[env._own.__module__]
    assert code.SEEN == [("2+2?", "<think>\nhm\n</think>\n\nfour", "4", {"level": 3})]


async def test_a_function_of_slimes_sees_a_group() -> None:
    flags = "--custom-rm-path mine.py:ranked --group-rm"
    assert await said(env_of(flags), "four") == 0.0  # the group's turn comes later
    assert await judged(flags, "ccc", "a", "bb", "dddd") == [0.5, 0.0, 0.25, 0.75]


async def test_a_group_s_samples_have_the_lengths_of_their_episodes() -> None:
    flags = "--custom-rm-path mine.py:shortest --group-rm"
    assert await judged(flags, "ccc", "a", "dddd") == [0.0, 0.0, 1.0]


async def test_our_signature_sees_a_group_as_texts() -> None:
    flags = "--custom-rm-path mine.py:ours --group-rm"
    assert await judged(flags, "4", "5") == [-1.0, -2.0]


async def test_an_evaluation_shows_a_groups_function_one_answer() -> None:
    env = env_of("--custom-rm-path mine.py:ours --group-rm")
    env.is_evaluation = True
    assert await said(env, "4") == 0.0
    assert await said(env, "5") == -1.0


async def test_a_reward_that_ships_scores_a_group_one_by_one() -> None:
    env = env_of("--rm-type f1 --group-rm")
    assert not env.scores_groups
    assert await said(env, "4") == 1.0
    order = group("x", "4")
    assert await scored(order, lambda: env_of("--rm-type f1 --group-rm"), LIMITS) == order


async def test_a_reward_model_is_made_once_with_the_flags() -> None:
    flags = "--custom-rm-path mine.py:CustomRewardModel"
    assert await said(env_of(flags), "four") == 4 + 4 * 4
    assert await judged(f"{flags} --group-rm", "a", "bb") == [4 + 4, 4 + 8]
    env = env_of(flags)
    assert env._own._cls.made == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("few", "few returned a list of 1; return a list of 3, one for each answer"),
        ("down", "score_group failed: ConnectionError: the judge is away"),
    ],
)
async def test_a_function_that_fails_a_group_is_its_fate(name: str, why: str) -> None:
    with pytest.raises(EnvError, match=why):
        await judged(f"--custom-rm-path mine.py:{name} --group-rm", "a", "b", "c")


async def test_a_sample_has_the_tokens_of_its_answer_behind_those_of_its_prompt() -> None:
    env = env_of("--custom-rm-path mine.py:reads_tokens")
    assignment = msgspec.structs.replace(ASSIGNMENT, task=Task("t", dict(ROW)))
    client = ScriptedClient("It is four.<|im_end|>")
    context = EnvContext(run_flags=env.run_flags)
    played = await Player(EnvEpisodes(lambda: env, CHAT, LIMITS, context)).play(assignment, client)
    code: Any = __import__("sys").modules[env._own.__module__]
    answer = CHAT.vocab.encode_trusted("It is four.<|im_end|>")
    assert played.report.error is None
    assert played.report.reward == len(answer)
    assert [([*client.prompts[0], *answer], len(answer))] == code.SEEN


async def test_what_a_sample_of_a_group_lacks_is_said() -> None:
    with pytest.raises(
        EnvError, match="a sample has no 'tokens' here; it has index, label, metadata, prompt"
    ):
        await judged("--custom-rm-path mine.py:ranked_by_tokens --group-rm", "a", "b")


async def test_a_class_that_wants_more_than_flags_is_refused() -> None:
    with pytest.raises(ConfigError, match="wants more than `args`: give the other parameters"):
        await said(env_of("--custom-rm-path mine.py:Demanding"), "four")


def test_a_function_that_is_given_the_other_number_of_samples_is_told() -> None:
    alone = RewardSample(RewardInput(text="", response="", label=None, prompt="", task={}))
    with pytest.raises(TypeError, match="of a group by --group-rm"):
        list(alone)
    seen: list[Any] = []
    answer = RewardInput(text="", response="", label=None, prompt="", task={})

    async def one(args: Any, samples: Any) -> Any:
        seen.append(len(samples))
        return samples.label

    with pytest.raises(AttributeError, match="without --group-rm"):
        anyio.run(OfSample(one).worth_of_group, Args(None), [answer, answer])
    assert seen == [2]
