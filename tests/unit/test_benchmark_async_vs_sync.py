"""The comparison with synchronous training: its law of latency, its arms, and what it reads off."""

import json
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web

from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.signatures import check_class
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.registry import load_env
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.env import RETRIEVER
from agentrl.errors import ConfigError
from agentrl.telemetry.metrics import REGISTRY
from agentrl.tokens.chat import ToolCall
from benchmarks import Row, async_vs_sync
from benchmarks.async_vs_sync import ARMS, ASYNC_ARM, Stretch, stretch
from benchmarks.slow_search import LIMIT_S, MEDIAN_S, SlowSearchEnv, latency_s
from tests.unit.default_lines import difference

TASK = {"question": "What is the capital of France?", "answer": "Paris"}
PASSAGE = " The capital of France is Paris."

# ---- the law ------------------------------------------------------------------------------------


def test_the_latency_is_a_function_of_seed_and_search_alone() -> None:
    first = [latency_s(seed, search) for seed in (7, 8) for search in (0, 1)]
    assert first == [latency_s(seed, search) for seed in (7, 8) for search in (0, 1)]
    assert len(set(first)) == 4


def test_the_law_is_long_tailed_within_its_limit() -> None:
    drawn = [latency_s(seed, search) for seed in range(5000) for search in (0, 1)]
    assert min(drawn) > 0
    assert max(drawn) == LIMIT_S == 5.0
    assert statistics.median(drawn) == pytest.approx(MEDIAN_S, rel=0.05)
    assert statistics.fmean(drawn) == pytest.approx(0.80, rel=0.05)
    assert sum(s > 1.8 for s in drawn) / len(drawn) == pytest.approx(0.1, abs=0.02)
    assert sum(s == LIMIT_S for s in drawn) / len(drawn) == pytest.approx(0.0107, abs=0.005)


def test_the_median_scales_the_latency_and_nothing_turns_it_off() -> None:
    assert latency_s(3, 0, 0.2) == pytest.approx(2 * latency_s(3, 0, 0.1))
    assert latency_s(3, 0, 0) == 0


# ---- the tool -----------------------------------------------------------------------------------


@asynccontextmanager
async def env_and_queries(median_s: float) -> AsyncIterator[tuple[SlowSearchEnv, list[str]]]:
    """An Env whose retriever knows one passage, and the queries that reach it."""
    queries: list[str] = []

    async def retrieve(request: web.Request) -> web.Response:
        queries.extend((await request.json())["queries"])
        return web.json_response({"result": [[{"document": {"contents": PASSAGE}}]]})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    env = SlowSearchEnv(median_s=median_s)
    env.services = {RETRIEVER: f"http://127.0.0.1:{runner.addresses[0][1]}"}
    try:
        await env.reset(seed=1, task=TASK)
        yield env, queries
    finally:
        await env.close()
        await runner.cleanup()


@pytest.mark.anyio
async def test_a_search_of_the_slow_env_asks_the_real_service() -> None:
    async with env_and_queries(median_s=0) as (env, queries):
        call = ToolCall("call_0_0", "search", b'{"query": "capital of France"}')
        step = await env.step(AssistantTurn("", [call], None, "stop", 0))
        assert [message.content for message in step.messages] == [PASSAGE]
    assert queries == ["capital of France"]


@pytest.mark.anyio
async def test_a_search_waits_before_it_asks() -> None:
    async with env_and_queries(median_s=1e9) as (env, queries):
        with anyio.move_on_after(0.05) as scope:
            await env.retrieve("capital of France")
    assert scope.cancelled_caught
    assert queries == []


def test_the_slow_env_is_the_default_jobs_env_but_for_the_wait() -> None:
    env = load_env(named_env())
    check_class(env)
    assert issubclass(env, SearchR1Env)
    assert env.service_specs({}) == SearchR1Env.service_specs({})
    assert {n: t.spec for n, t in env.tools.items()} == {
        n: t.spec for n, t in SearchR1Env.tools.items()
    }
    assert env.reward_reads_text_only


@pytest.mark.parametrize("median_s", [-1.0, float("inf"), float("nan")])
def test_a_latency_that_is_none_is_refused(median_s: float) -> None:
    with pytest.raises(ConfigError, match="median_s"):
        SlowSearchEnv(median_s=median_s)


# ---- the arms -----------------------------------------------------------------------------------


def resolved(arm: str, tool: str) -> RunConfig:
    program, *flags = async_vs_sync.command(arm, tool, last=13)
    return parse(flags, "train" if program == "train.py" else "train_async").config


def named_env() -> str:
    return str(resolved(ASYNC_ARM, "slow").env)


@pytest.mark.parametrize("tool", ["slow", "instant"])
@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != ASYNC_ARM])
def test_the_arms_differ_in_asynchrony_and_layout_alone(arm: str, tool: str) -> None:
    differing = difference(resolved(ASYNC_ARM, tool), resolved(arm, tool))
    assert differing <= {
        "async_buffer_size", "max_staleness", "actor_num_gpus_per_node", "rollout_num_gpus"
    }  # fmt: skip
    assert "async_buffer_size" in differing


def test_the_tools_differ_in_latency_alone() -> None:
    slow, instant = resolved(ASYNC_ARM, "slow"), resolved(ASYNC_ARM, "instant")
    assert difference(slow, instant) == {"env_args"}
    assert (slow.env_args, instant.env_args) == ({"median_s": MEDIAN_S}, {"median_s": 0})


def test_the_measured_job_is_the_default_job_under_a_hard_bound() -> None:
    measured = resolved(ASYNC_ARM, "slow")
    default = parse(["--async-buffer-size", "4"], "train_async").config
    assert difference(measured, default) == {
        "env", "env_args", "num_rollout", "sglang_server_concurrency", "skip_eval_before_train"
    }  # fmt: skip
    assert measured.staleness_bound == 4


def test_no_arm_has_to_hold_back_an_episode_of_a_batch_or_drains_while_it_is_measured() -> None:
    for arm in ARMS:
        config = resolved(arm, "slow")
        episodes = config.rollout_batch_size * config.n_samples_per_prompt
        assert config.num_agent_workers * config.max_concurrent_episodes >= episodes
        assert config.num_engines * config.sglang_server_concurrency >= episodes
        ahead = min(config.async_buffer_size, config.staleness_bound)
        assert config.num_rollout is not None
        assert config.num_rollout - 13 > ahead + config.update_weights_interval


# ---- what it reads off --------------------------------------------------------------------------


def line(step: int, time: float, **metrics: float | None) -> str:
    """A line of metrics.jsonl: ten episodes trained and twelve made in each iteration."""
    numbers = {
        "rollout/num_episodes": 10, "buffer/played_episodes": 100 + 12 * step,
        "perf/lease_wait_s": 1.0, "perf/iteration_s": 4.0,
        "train/age_max_trained": 2.0, "train/masked_token_share": 0.0,
    }  # fmt: skip
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    written = {"step": step, "metrics": numbers | named, "histograms": {}, "time": time}
    return json.dumps(written) + "\n"


RUN = "".join([
    line(1, 90.0, train__age_max_trained=9),
    line(2, 100.0, perf__lease_wait_s=50, train__masked_token_share=0.9),
    json.dumps({"step": 2, "eval": {"heldout": {"score": 0.5}}, "time": 101.0}) + "\n",
    line(3, 105.0, perf__lease_wait_s=3, train__age_max_trained=3),
    line(4, 112.0, train__masked_token_share=0.1),
    line(5, 190.0, train__age_max_trained=9),
])  # fmt: skip


def test_a_stretch_begins_where_its_first_iteration_ends() -> None:
    assert stretch(async_vs_sync.iterations(RUN), 2, 4) == Stretch(
        iteration_s=6.0,  # (112 - 100) / 2
        idle_share=0.5,  # (3 + 1) / (4 + 4)
        max_trained_age=3.0,
        masked_share=0.05,
        made_per_trained=1.2,
    )


def test_a_line_that_is_being_written_is_not_read() -> None:
    assert async_vs_sync.iterations("") == []
    assert async_vs_sync.iterations('{"step": 1, "met') == []
    assert [it.step for it in async_vs_sync.iterations(RUN + '{"step": 6, "met')] == [1, 2, 3, 4, 5]


def test_a_metric_without_a_value_counts_as_nothing() -> None:
    text = line(1, 0.0) + line(2, 4.0, train__age_max_trained=None)
    assert stretch(async_vs_sync.iterations(text), 1, 2).max_trained_age == 0


@pytest.mark.parametrize(("first", "last"), [(0, 4), (2, 6), (3, 3)])
def test_a_stretch_that_is_not_whole_is_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match=rf"are not {first}\.\.{last}"):
        stretch(async_vs_sync.iterations(RUN), first, last)


def test_every_metric_that_is_read_is_one_that_runs_write() -> None:
    written = json.loads(line(1, 0.0))["metrics"]
    assert [name for name in written if REGISTRY.find(name) is None] == []


def of(iteration_s: float) -> Stretch:
    return Stretch(iteration_s, 0.25, 3.0, 0.01, 1.0)


def rows() -> dict[str, Row]:
    slow = {"sync 1+1": of(9.0), "sync 2+1": of(6.0), ASYNC_ARM: of(2.0)}
    instant = {"sync 1+1": of(3.0), "sync 2+1": of(4.0), ASYNC_ARM: of(2.0)}
    return {row.metric: row for row in async_vs_sync.rows_of({"slow": slow, "instant": instant})}


def test_the_speedup_is_over_the_fastest_synchronous_layout() -> None:
    found = list(rows().values())
    assert found[0] == Row("speedup", 3.0, "x", "2.0")
    assert found[1] == Row("speedup_without_tool_latency", 1.5, "x")


def test_each_arm_has_rows_of_its_own_and_the_base_is_named() -> None:
    found = rows()
    assert len(found) == 2 + 2 * 3 * 5
    assert found[f"slow, {ASYNC_ARM}: iteration_s"] == Row(
        f"slow, {ASYNC_ARM}: iteration_s", 2.0, "s", "slow, sync 2+1"
    )
    assert found[f"instant, {ASYNC_ARM}: iteration_s"].against == "instant, sync 1+1"
    assert found["slow, sync 1+1: idle_share"].value == 0.25
    assert found[f"slow, {ASYNC_ARM}: max_trained_age"].against == "at most 4"
