"""An episode whose policy is a model that an SGLang server serves, for `env play`.

It is played as in a run: the same prompt, tokens, tools, budgets and parser. Its tokens have no
version that a learner published, and nothing is trained on them.
"""

from pathlib import Path
from typing import TextIO

import msgspec

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.cluster.spec import read_model_facts
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import open_chat_format
from agentrl.envs.check.subject import Subject
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.tokens.found import find_format
from agentrl.tokens.templates.load import OwnTemplate
from agentrl.types import (
    EngineAddress,
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    SamplingParams,
)
from agentrl.view.text import print_played

__all__ = ["Policy", "play_served"]

#: Seconds that the server may take to say what it is.
_ASK_S = 10.0


class Policy(msgspec.Struct, frozen=True):
    """Where the model is, and how it is asked. `model_dir`: its tokenizer and chat template; of the
    directory that the server names where it is None. `chat_format`: found from it where it is
    None."""

    url: str
    model_dir: str | None
    chat_format: str | OwnTemplate | None
    temperature: float


async def play_served(subject: Subject, policy: Policy, out: TextIO) -> EpisodeReport:
    """Play one episode and write the conversation and its end to `out`.

    Raises EngineError when the server does not answer, ConfigError for a model directory
    that cannot be used.
    """
    engine = EngineAddress("the server", policy.url)
    async with EngineControl(engine, timeout_s=_ASK_S) as control:
        info = await control.info()
    model_dir = Path(policy.model_dir or str(info.model["model_path"]))
    facts = read_model_facts(model_dir, info.max_input_tokens)
    written = policy.chat_format or find_format(model_dir).wanted
    chat = open_chat_format(written, model_dir, max_tokens=facts.max_context)
    defaults = RunConfig()
    limits = Limits(
        max_context=facts.max_context,
        max_prompt=facts.max_context - 2,
        max_turns=defaults.max_turns,
        max_tool_calls=defaults.max_tool_calls,
        episode_timeout_s=defaults.episode_timeout_s,
    )
    sampling = SamplingParams(
        temperature=policy.temperature, max_new_tokens=defaults.rollout_max_response_len
    )
    episode = EpisodeAssignment(EpisodeId("played", 0), 1, subject.seed, subject.task, sampling)
    client = EngineClient(
        policy.url,
        [engine],
        vocab_size=facts.vocab_size,
        max_context=facts.max_context,
        num_permits=1,
        turn_timeout_s=defaults.turn_timeout_s,
        unpublished=True,
    )
    async with client:
        episodes = EnvEpisodes(subject.make, chat, limits, subject.context)
        played = await Player(episodes).play(episode, client)
    print_played(out, played, chat.vocab)
    return played.report
