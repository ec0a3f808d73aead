"""Slime's functions of on-policy distillation beside what agentrl does in their place.

Their `reward_func` asks the teacher about a whole sample, and their `post_process_rewards` takes
the log-probabilities of the response out of its answer. Under their names agentrl plays its own
teacher (`--opd-type sglang`). Both are asked about the same tokens here.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from agentrl.config.args import Args
from agentrl.envs.slime_stand_in.misc import load_function
from agentrl.envs.slime_stand_in.types import Sample
from scripts.slime_files.overheard import Reply, serving
from scripts.slime_files.playing import Engine, Stage, episode_of, said
from scripts.slime_files.records import Asked, Case, Episode, Taught

__all__ = ["distilled", "teaching"]


def teaching(logprobs: dict[tuple[int, ...], list[float]] | None = None) -> Reply:
    """What a teacher answers, as SGLang does: of each token from `logprob_start_len` on its
    log-probability, and nothing of the first. `logprobs`: of the tokens that it knows; None: made
    up of place and id."""

    async def reply(request: web.Request, body: Any) -> tuple[int, Any]:
        del request
        ids = body["input_ids"]
        if logprobs is None:
            told = [-(1 + place + id_ % 7) / 4096 for place, id_ in enumerate(ids)]
        else:
            told = next(known for one, known in logprobs.items() if list(one[: len(ids)]) == ids)
        start = body["logprob_start_len"]
        entries = [[told[place], ids[place], None] for place in range(start, len(ids))]
        entries[0][0] = None
        return 200, {"text": "", "meta_info": {"input_token_logprobs": entries}}

    return reply


async def distilled(
    module: str, cases: Sequence[Any], flags: Sequence[str], folder: Path
) -> AsyncIterator[Case]:
    """Play cases, and ask the functions of `module` about the tokens of each."""
    async with Stage(flags, [case.row for case in cases], folder) as stage:
        port = urlsplit(stage.config.rm_url or "").port
        assert port is not None
        for place, case in enumerate(cases):
            asked: list[Asked] = []
            engine = Engine(said(case.says))
            async with serving(teaching(), asked, port):
                episode = episode_of(await stage.play(place, engine))
                del asked[:]
                taught = await _taught(module, Args(stage.config), episode)
            yield Case(
                name=case.name,
                row=case.row,
                turns=engine.turns,
                outside=asked,
                taught=taught,
                episode=episode,
            )


async def _taught(module: str, args: Args, episode: Episode) -> Taught:
    (spans,) = episode.trajectories
    tokens = [id_ for span in spans for id_ in span.ids]
    response = spans[-1].ids
    sample: Any = Sample(tokens=tokens, response_length=len(response))
    sample.reward = await load_function(f"{module}.reward_func")(args, sample)
    _, rewards = load_function(f"{module}.post_process_rewards")(args, [sample])
    return Taught(logprobs=sample.teacher_log_probs.tolist(), reward=rewards[0])
