"""Functions in slime's signature that do what a record says: none of the recorded code is here.

`play` says which case; its requests go to the run's `/generate` one after the other.
"""

from typing import Any

from agentrl.envs.slime_stand_in.http_utils import post
from agentrl.envs.slime_stand_in.types import Sample
from scripts.slime_files.records import Case, differences, timeless

__all__ = ["generate", "play", "reward_func"]


class _Now:
    case: Case
    place = 0


def play(case: Case) -> None:
    """The next episode is of this case."""
    _Now.case, _Now.place = case, 0


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """Ask what was asked, look whether the answers are the same, and return what was returned."""
    case = _Now.case
    assert case.given is not None
    given = {"prompt": sample.prompt, "label": sample.label, "index": sample.index}
    _require_same(case.given, given | {"sampling": sampling_params}, "given")
    address = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    for number, asked in enumerate(case.asked):
        reply = await post(f"{address}{asked.path}", asked.request)
        _require_same(asked.reply, timeless(reply), f"reply {number}")
    return [
        Sample(
            prompt=one.prompt,
            tokens=one.tokens,
            response=one.response,
            response_length=one.response_length,
            label=sample.label,
            loss_mask=one.loss_mask,
            status=Sample.Status(one.status),
            reward=one.reward,
            remove_sample=one.remove_sample,
        )
        for one in case.returned
    ]


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """What was said of this sample, which has to be the same."""
    judged = _Now.case.judged[_Now.place]
    _Now.place += 1
    seen = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    seen |= {"status": sample.status.value, "reward": judged.reward}
    _require_same(judged, seen, "judged")
    return judged.reward


def _require_same(recorded: Any, played: Any, what: str) -> None:
    if found := list(differences(recorded, played, what)):
        raise AssertionError(f"{_Now.case.name}: {'; '.join(found)}")
