"""A whole run (see `whole_loop`) whose roles have rewards of their own: workers report them, the
buffer keeps and leases them, the learner compares each role with itself, and `agentrl view` says
so; episodes alone would teach nothing here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from agentrl import Chat, Step, rollout
from agentrl.algorithms.base import credits_of
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.role_rewards import by_name
from agentrl.buffer import audit
from agentrl.cli import main as cli
from agentrl.cluster.loaded import take_rollouts
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import DataError
from agentrl.learner.metrics import lease_metrics
from agentrl.learner.plan import plan_iteration
from agentrl.numbered import numbered
from agentrl.roles import by_role, role_of
from agentrl.rollout_file import read_rollouts
from agentrl.telemetry.metrics import REGISTRY
from agentrl.types import Fate
from agentrl.view.choice import Choice
from agentrl.view.episodes import read_facts
from tests.integration.test_sync_equals_async import EPISODES, GROUPS, Ground, Played, play

pytestmark = pytest.mark.timeout(1800)

ITERATIONS = 3
SAVED = "saved-{rollout_id}"


@rollout("test/two-roles")
async def two_roles(task: dict[str, Any], chat: Chat) -> Step:
    """What one gains the other loses, so that all episodes are worth the same."""
    words = {}
    for name in ("first#0", "first#1", "second"):
        message = [{"role": "user", "content": f"{task['input']} for {name}"}]
        words[name] = (await chat.complete(message, model=name))["content"]
    won = float(len(words["first#0"].encode()) > len(words["second"].encode()))
    return Step(reward=0.5, rewards={"first#0": won, "first": 0.25, "second": 1.0 - won})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any, qwen_tokenizer_json: str) -> Iterator[Played]:
    with start_blocking_portal("asyncio") as portal:
        ground = Ground(tmp_path_factory.mktemp("roles"), qwen_tokenizer_json, portal)
        flags = [
            *("--env", "test/two-roles", "--num-rollout", str(ITERATIONS)),
            *("--reward-level", "role"),
            *("--save-debug-rollout-data", f"{ground.folder}/{SAVED}"),
            *("--dynamic-sampling-filter-path", "check_reward_nonzero_std"),
        ]
        config = ground.config("train", "roles", *flags)
        played = play(ground, config)
        write_config(played.run / "config.toml", config)
        yield played


def test_groups_of_equal_episodes_are_trained_by_their_roles(trained: Played) -> None:
    report = audit(trained.run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
    digests = [digest for _, digest in trained.pushed]
    assert len(set(digests)) == len(digests) == ITERATIONS + 1, "an iteration changed no weight"


def test_a_lease_has_what_each_role_earned(trained: Played) -> None:
    algorithm = load_algorithm(RunConfig(reward_level="role"))
    for group in (group for lease in trained.leases for group in lease.groups):
        assert group.rewards == [0.5] * EPISODES
        for earned, fact in zip(by_name(group), group.facts, strict=True):
            assert fact.env_reward == 0.5
            assert earned["first#0"] + earned["second"] == 1.0
            assert earned["first#1"] == 0.25
        roles = by_role(by_name(group))
        assert {role: len(each) for role, each in roles.items()} == {
            "first": 2 * EPISODES,
            "second": EPISODES,
        }
        for credit in credits_of(algorithm, group):
            assert isinstance(credit.value, dict)
            for name, advantage in credit.value.items():
                rewards = roles[role_of(name)]
                assert (advantage != 0) == (len(set(rewards)) > 1)


def test_what_was_saved_trains_by_its_roles_or_not_at_all(trained: Played, tmp_path: Path) -> None:
    saved = trained.run.parent / SAVED
    config = RunConfig(load_debug_rollout_data=str(saved), reward_level="role")
    (run := tmp_path / "again").mkdir()
    take_rollouts(config, run)
    write_config(run / "config.toml", config)
    for lease in trained.leases:
        loaded = read_rollouts(numbered(str(saved), lease.number)).lease
        assert [by_name(g) for g in loaded.groups] == [by_name(g) for g in lease.groups]
        assert plan_iteration(loaded, load_algorithm(config), 1)
        with pytest.raises(DataError, match=r"would drop: give --reward-level role, under which"):
            plan_iteration(loaded, load_algorithm(RunConfig()), 1)
        again = [each.roles for each in read_facts(run, Choice(lease=lease.number))]
        assert again == [each for g in lease.groups for each in by_name(g)]


def test_the_view_says_what_each_role_earned(
    trained: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", str(trained.run), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == ITERATIONS * GROUPS * EPISODES
    for line in lines:
        assert (line["reward"], line["advantage"]) == (0.5, None)
        assert line["roles"] == {
            "first#0": 1.0 - line["roles"]["second"],
            "first#1": 0.25,
            "second": line["roles"]["second"],
        }
    assert cli.main(["view", str(trained.run), "--tokens", "--lease", "1"]) == 0
    (shown, *_) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("roles:")
    ]
    assert "first#1=0.25 (" in shown
    assert "second=" in shown


def test_the_metrics_have_a_mean_for_each_role(trained: Played) -> None:
    for lease in trained.leases:
        found = {n: v for n, v in lease_metrics(lease, [0]).items() if "/role/" in n}
        assert found.keys() == {f"rollout/role/{role}/reward_mean" for role in ("first", "second")}
        assert all(REGISTRY.find(name) is not None for name in found)
        # what one gains the other loses
        first = 2 * found["rollout/role/first/reward_mean"] - 0.25
        assert first == pytest.approx(1.0 - found["rollout/role/second/reward_mean"])
