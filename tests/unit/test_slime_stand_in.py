"""What functions of slime's users import, where slime is not installed."""

import importlib
import json
from typing import Any

import anyio
import pytest

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.slime_stand_in.data import get_source
from agentrl.envs.slime_stand_in.math_dapo_utils import compute_score
from agentrl.envs.slime_stand_in.misc import SingletonMeta, load_function
from agentrl.envs.slime_stand_in.rm_hub import batched_async_rm, judging
from agentrl.envs.slime_stand_in.sglang_rollout import get_model_url
from agentrl.envs.slime_stand_in.trace_utils import (
    build_sglang_meta_trace_attrs,
    trace_event,
    trace_function,
    trace_span,
)
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.errors import EnvError, InfrastructureError
from agentrl.slime_modules import MODULES, show


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_what_stands_in_for_it(name: str) -> None:
    show()
    stands_in = importlib.import_module(MODULES[name])
    module = importlib.import_module(name)
    assert {each: vars(module)[each] for each in stands_in.__all__}


@pytest.mark.parametrize(
    ("text", "strict", "score", "read"),
    [
        ("Answer: 42", False, 1.0, "42"),
        ("Answer: 41", False, -1.0, "41"),
        ("\\boxed{42}", False, -1.0, "[INVALID]"),
        ("\\boxed{42}", True, 1.0, "42"),
        ("\\boxed{4{2}}", True, -1.0, "4{2}"),
        ("\\boxed{ 42}", True, -1.0, " 42"),
        ("Answer: 42", True, -1.0, None),
        ("\\boxed{42}" + "." * 100, True, -1.0, None),
    ],
)
def test_an_answer_is_scored_as_its_function_is_asked(
    text: str, strict: bool, score: float, read: str | None
) -> None:
    found = compute_score(text, "42", strict_box_verify=strict)
    assert found == {"score": score, "acc": score > 0, "pred": read}


def test_a_sample_says_where_its_task_is_from() -> None:
    own = Sample(metadata={"source_name": "gsm8k"})
    assert (get_source(own), get_source(Sample()), get_source(object())) == (
        "gsm8k",
        *("unknown", "unknown"),
    )
    own.source = "mine"  # type: ignore[attr-defined]
    assert get_source(own) == "mine"


def test_a_sample_goes_to_a_dict_and_back() -> None:
    sample = Sample(index=3, status=Sample.Status.TRUNCATED, metadata={"n": 1}, loss_mask=[1])
    sample.spec_info.spec_accept_token_num = 2
    sample.turns = 4  # type: ignore[attr-defined]
    found = sample.to_dict()
    assert json.loads(json.dumps(found)) == found
    again = Sample.from_dict(found)
    assert again == sample
    assert vars(again)["turns"] == 4


def test_a_sample_counts_what_engines_had_in_their_caches() -> None:
    sample = Sample()
    answer = {"prompt_tokens": 8, "cached_tokens": 6, "finish_reason": {"type": "stop"}}
    sample.append_response_tokens(tokens=[5], log_probs=[-1.0], meta_info=answer)
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.75
    assert (sample.spec_info.spec_accept_rate, sample.spec_info.spec_accept_length) == (0.0, 0.0)
    drafted = {"spec_draft_token_num": 4, "spec_accept_token_num": 3, "spec_verify_ct": 2}
    sample.append_response_tokens(
        tokens=[6], log_probs=[-1.0], meta_info=answer | drafted | {"completion_tokens": 5}
    )
    assert (sample.spec_info.spec_accept_rate, sample.spec_info.spec_accept_length) == (0.75, 2.5)
    again = Sample.from_dict(sample.to_dict())
    assert (again.spec_info, again.prefix_cache_info) == (
        sample.spec_info,
        sample.prefix_cache_info,
    )


def test_a_class_has_one_object() -> None:
    class Counted(metaclass=SingletonMeta):
        pass

    first = Counted()
    assert Counted() is first
    Counted.clear_instances()
    assert Counted() is not first


def test_the_policy_alone_has_an_address() -> None:
    args: Any = Args(RunConfig())
    args.sglang_router_ip, args.sglang_router_port = "agentrl:key@127.0.0.1", 3
    assert get_model_url(args, "actor") == "http://agentrl:key@127.0.0.1:3/generate"
    with pytest.raises(ValueError, match="no model 'reward' here"):
        get_model_url(args, "reward")


def test_spans_leave_a_function_as_it_is() -> None:
    def twice(number: int) -> int:
        with trace_span(None, "twice", attrs={"n": number}) as span:
            span.set("n", number).update(build_sglang_meta_trace_attrs({"id": "1"}))
        trace_event(None, "done")
        return 2 * number

    assert trace_function("twice", target="number")(twice) is twice
    assert twice(2) == 4


def test_a_function_is_loaded_by_its_dotted_name() -> None:
    assert load_function("agentrl.envs.slime_stand_in.misc.load_function") is load_function


@pytest.mark.anyio
async def test_the_reward_of_the_run_is_that_of_its_episode() -> None:
    async def double(args: Any, sample: int) -> int:
        await anyio.sleep(0.001 * (4 - sample))
        return 2 * sample

    with judging(double):
        assert await batched_async_rm(None, [1, 2, 3]) == [2, 4, 6]
    with pytest.raises(EnvError, match="outside of an episode"):
        await batched_async_rm(None, [1])


@pytest.mark.anyio
async def test_a_reward_that_cannot_be_had_says_of_what_kind_that_is() -> None:
    async def down(args: Any, sample: int) -> int:
        raise InfrastructureError("the judge is down")

    with judging(down), pytest.raises(InfrastructureError, match="the judge is down"):
        await batched_async_rm(None, [1, 2])


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        ({}, 1),
        ({"rollout_num_gpus": 6}, 6),
        ({"colocate": True, "actor_num_gpus_per_node": 4, "rollout_num_gpus_per_engine": 2}, 4),
    ],
)
def test_args_know_how_many_devices_generate(flags: dict[str, Any], devices: int) -> None:
    args: Any = Args(RunConfig(**flags))
    assert args.rollout_num_gpus == devices


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from slime.rollout.sglang_rollout import generate_and_rm_group", "docs/hooks.md lists"),
        ("from slime.utils.types import post", "it is in slime.utils.http_utils"),
        ("import slime.utils.http_util", "did you mean slime.utils.http_utils"),
    ],
)
def test_what_does_not_stand_in_is_told_with_where_to_look(line: str, said: str) -> None:
    show()
    with pytest.raises(ImportError, match=said):
        exec(line)
