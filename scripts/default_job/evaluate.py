"""Scores a model of the default job without a server: held-out exact match and RL signal.

    OMP_NUM_THREADS=1 python scripts/default_job/evaluate.py [--model DIR] [--json FILE]

Episodes are played by the job's own Env and chat format; only the engine (transformers' `generate`,
in batches) and the retriever (in this process) differ. Prints, for each question set and
temperature, exact match and how the model used its tool, and for questions of the RL split the
share of groups of 8 whose rewards differ: where there is no difference, GRPO learns nothing.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import torch
from transformers import Qwen3ForCausalLM

from agentrl.envs.messages import AssistantTurn
from agentrl.envs.search_r1 import SearchR1Env, SearchR1Source, eval_tasks
from agentrl.envs.search_r1.facts import passages
from agentrl.envs.search_r1.retriever import Index
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format
from agentrl.types import Task

MODEL_DIR = Path(__file__).parents[2] / "agentrl" / "envs" / "search_r1" / "model"
MAX_TURNS = 3
MAX_NEW_TOKENS = 56
BATCH = 64
GROUP = 8


class OfflineEnv(SearchR1Env):
    """The job's Env with the index in this process."""

    index: Index

    async def retrieve(self, query: str) -> list[str]:
        (hits,) = self.index.search([query], self._topk)
        return [hit.document.contents for hit in hits]


class Played(msgspec.Struct):
    """One episode: its state while it is played, its outcome after."""

    task: Task
    env: OfflineEnv
    ids: list[int]
    reward: float = 0.0
    searches: int = 0
    malformed: int = 0
    finished: bool = False


class Score(msgspec.Struct, frozen=True):
    """Means over the episodes of a question set. `malformed`: a call that cannot be read or run, or
    a last turn without an answer; `unfinished`: still searching after the last turn."""

    questions: str
    temperature: float
    episodes: int
    exact_match: float
    one_hop: float
    two_hop: float
    searched: float
    searches: float
    malformed: float
    unfinished: float


@torch.no_grad()
def generate(
    model: Qwen3ForCausalLM, prompts: Sequence[list[int]], temperature: float, stop: Sequence[int]
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
    output = model.generate(
        tokens,
        attention_mask=mask,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=list(stop),
        pad_token_id=0,
        **sampling,
    )
    turns: list[list[int]] = output[:, longest:].tolist()
    for turn in turns:
        ends = [at for at, token in enumerate(turn) if token in stop]
        del turn[ends[0] + 1 if ends else len(turn) :]
    return turns


async def play(
    model: Qwen3ForCausalLM, chat: ChatFormat, tasks: Sequence[Task], temperature: float
) -> list[Played]:
    """Play one episode of each task."""
    played: list[Played] = []
    for start in range(0, len(tasks), BATCH):
        live: list[Played] = []
        for task in tasks[start : start + BATCH]:
            env = OfflineEnv()
            messages = await env.reset(seed=start + len(live), task=task.row)
            ids = [id_ for span in chat.open_prompt(messages) for id_ in span.ids]
            live.append(Played(task, env, ids))
        played += live
        for index in range(MAX_TURNS):
            prompts = [episode.ids for episode in live]
            turns = generate(model, prompts, temperature, chat.stop_ids) if live else []
            for episode, turn in zip(live, turns, strict=True):
                await advance(episode, chat, turn, index)
            live = [episode for episode in live if not episode.finished]
    return played


async def advance(episode: Played, chat: ChatFormat, turn: list[int], index: int) -> None:
    """Let the Env answer a turn."""
    parsed = chat.parse(turn, index=index)
    step = await episode.env.step(
        AssistantTurn(parsed.text, parsed.tool_calls, parsed.parse_error, "stop", index)
    )
    episode.ids += turn
    episode.searches += len(parsed.tool_calls)
    episode.malformed |= int(step.metrics.get("tool_errors", 0) > 0)
    episode.malformed |= int(step.done and "</answer>" not in parsed.text)
    episode.reward, episode.finished = step.reward, step.done
    episode.ids += [id_ for span in chat.observe(step.messages, turn) for id_ in span.ids]


def summarise(questions: str, temperature: float, played: Sequence[Played]) -> Score:
    hops = {n: [e.reward for e in played if len(e.task.row["relations"]) == n] for n in (1, 2)}
    return Score(
        questions=questions,
        temperature=temperature,
        episodes=len(played),
        exact_match=statistics.fmean(e.reward for e in played),
        one_hop=statistics.fmean(hops[1] or [0.0]),
        two_hop=statistics.fmean(hops[2] or [0.0]),
        searched=statistics.fmean(e.searches > 0 for e in played),
        searches=statistics.fmean(e.searches for e in played),
        malformed=statistics.fmean(e.malformed for e in played),
        unfinished=statistics.fmean(not e.finished for e in played),
    )


def signal_share(played: Sequence[Played]) -> float:
    """Share of consecutive groups of GROUP episodes whose rewards are not all equal."""
    rewards = [episode.reward for episode in played]
    groups = [rewards[at : at + GROUP] for at in range(0, len(rewards), GROUP)]
    return statistics.fmean(len(set(group)) > 1 for group in groups)


async def evaluate(model_dir: Path, num_groups: int) -> dict[str, Any]:
    """All figures of a model, for `training.json` and the model card."""
    model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    chat = load_format("qwen", model_dir)
    OfflineEnv.index = Index(passages())
    scores = [
        summarise(name, temperature, await play(model, chat, eval_tasks(name), temperature))
        for name, temperature in (("heldout", 0.0), ("heldout", 1.0), ("hard", 0.0))
    ]
    source = SearchR1Source(seed=0)
    tasks = [source.task(index) for index in range(num_groups) for _ in range(GROUP)]
    groups = await play(model, chat, tasks, 1.0)
    scores.append(summarise("train", 1.0, groups))
    return {"scores": msgspec.to_builtins(scores), "groups_with_signal": signal_share(groups)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--groups", type=int, default=64, help="groups of 8 on RL questions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    figures = anyio.run(evaluate, options.model, options.groups)
    for score in figures["scores"]:
        print(
            "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else str(v) for k, v in score.items())
        )
    print(f"groups with signal {figures['groups_with_signal']:.3f}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2))


if __name__ == "__main__":
    main()
