"""Episodes of the default job without a server: its own Env and chat format, in this process.

Only the engine (transformers' `generate`, in batches) and the road to the retriever differ from the
job. Limits are the preset's and seeds those of the job's evaluation, so question i of a set shows
its passages in the same order here and there.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import Qwen3ForCausalLM

from agentrl.buffer.ids import episode_seed
from agentrl.config.presets import DEFAULT, preset
from agentrl.config.run import RunConfig
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.facts import passages
from agentrl.envs.search_r1.retriever import Index
from agentrl.tokens.formats.load import load_format
from agentrl.types import Task

__all__ = ["FORCED", "OfflineEnv", "Played", "Policy", "play"]

MAX_TURNS: int = preset(DEFAULT).values["max_turns"]
MAX_NEW_TOKENS: int = preset(DEFAULT).values["rollout_max_response_len"]
BATCH = 64
#: How a forced search begins; the model writes the query and what follows it.
FORCED = '<tool_call>\n{"name": "search", "arguments": {"query": "'


@cache
def corpus_index() -> Index:
    return Index(passages())


class OfflineEnv(SearchR1Env):
    """The job's Env with the index in this process."""

    async def retrieve(self, query: str) -> list[str]:
        (hits,) = corpus_index().search([query], self._topk)
        return [hit.document.contents for hit in hits]


class Played(msgspec.Struct):
    """One episode: its state while it is played, its outcome after.

    `malformed`: a call that cannot be read or run, or a last turn without an answer.
    """

    task: Task
    env: OfflineEnv
    ids: list[int]
    reward: float = 0.0
    searches: int = 0
    malformed: bool = False
    finished: bool = False


class Policy:
    """A model and its chat format, from a directory in Hugging Face format."""

    def __init__(self, model_dir: Path) -> None:
        self.chat = load_format("qwen", model_dir)
        self._model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    @torch.no_grad()
    def turns(
        self, prompts: Sequence[list[int]], temperature: float, max_new_tokens: int
    ) -> list[list[int]]:
        """One turn for each prompt; ends with a stop id unless it was cut."""
        longest = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, ids in enumerate(prompts):
            tokens[row, longest - len(ids) :] = torch.tensor(ids)
            mask[row, longest - len(ids) :] = 1
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
        output = self._model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self.chat.stop_ids),
            pad_token_id=0,
            **sampling,
        )
        turns: list[list[int]] = output[:, longest:].tolist()
        for turn in turns:
            ends = [at for at, token in enumerate(turn) if token in self.chat.stop_ids]
            del turn[ends[0] + 1 if ends else len(turn) :]
        return turns


async def play(
    policy: Policy,
    questions: Sequence[tuple[int, Task]],
    temperature: float,
    *,
    force_search: bool = False,
) -> list[Played]:
    """Play one episode of each numbered question in an Env of its own; its number gives the seed.

    With `force_search` the first turn of each begins with `FORCED`; later turns are free, so of a
    two-hop question only the first search is forced.
    """
    corpus_index()
    prefix = policy.chat.vocab.encode_trusted(FORCED) if force_search else []
    played: list[Played] = []
    for start in range(0, len(questions), BATCH):
        live = [await _open(policy, *numbered) for numbered in questions[start : start + BATCH]]
        played += live
        for index in range(MAX_TURNS):
            forced = prefix if index == 0 else []
            await _play_turn(policy, live, temperature, index, forced)
            live = [episode for episode in live if not episode.finished]
    return played


async def _open(policy: Policy, number: int, task: Task) -> Played:
    env = OfflineEnv()
    seed = episode_seed(RunConfig().rollout_seed, number, 0)
    messages = await env.reset(seed=seed, task=task.row)
    ids = [id_ for span in policy.chat.open_prompt(messages) for id_ in span.ids]
    return Played(task, env, ids)


async def _play_turn(
    policy: Policy, live: Sequence[Played], temperature: float, index: int, forced: list[int]
) -> None:
    if not live:
        return
    prompts = [episode.ids + forced for episode in live]
    turns = policy.turns(prompts, temperature, MAX_NEW_TOKENS - len(forced))
    for episode, turn in zip(live, turns, strict=True):
        await _advance(policy, episode, forced + turn, index)


async def _advance(policy: Policy, episode: Played, turn: list[int], index: int) -> None:
    """Let the Env answer a turn. One that was cut is the last, as in the job."""
    parsed = policy.chat.parse(turn, index=index)
    is_cut = turn[-1] not in policy.chat.stop_ids
    finish_reason = "length" if is_cut else "stop"
    step = await episode.env.step(
        AssistantTurn(parsed.text, parsed.tool_calls, parsed.parse_error, finish_reason, index)
    )
    episode.finished = step.done or is_cut
    episode.reward = step.reward
    episode.searches += len(parsed.tool_calls)
    episode.malformed |= step.metrics.get("tool_errors", 0) > 0
    episode.malformed |= episode.finished and "</answer>" not in parsed.text
    episode.ids += turn
    episode.ids += [id_ for span in policy.chat.observe(step.messages, turn) for id_ in span.ids]
