"""`agentrl view` shows the episodes that were asked for as they were, and says what is gone."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.buffer.store import segments_in
from agentrl.errors import StoreError
from agentrl.types import EpisodeReport, Outcome, SpanKind, StopReason, Task
from agentrl.view.choice import Choice, Line, choose
from agentrl.view.episodes import read_episodes
from agentrl.view.html import page
from agentrl.view.tokenizer import load_vocab
from agentrl.wire.messages import Finished, Tasks
from tests.unit.viewed_run import ViewedRun, headings, text, trained, trajectory

pytestmark = pytest.mark.slow


def test_a_trained_episode_is_shown_as_the_conversation_that_it_was(tmp_path: Path) -> None:
    shown = text(trained(tmp_path), best=1).splitlines()
    body = shown[shown.index("-- user --") :]
    assert body == [
        "-- user --",
        "  Which city?",
        "-- turn 0, assistant --",
        "  I will look it up.",
        "-- turn 0, tool --",
        *[f"  {line}" for line in ("<tool_response>", "Which city?", "</tool_response>")],
        "-- turn 1, assistant --",
        "  Paris",
    ]
    head = "\n".join(shown[: shown.index("-- user --")])
    for fact in ("episode 00000003/0#0", "lease:      3", "fate:       trained", "reward:     3"):
        assert fact in head
    assert "advantage:  +0.7071" in head
    assert "stopped by: terminated" in head
    assert "metrics:    calls=1" in head
    assert "versions 3 (" in head


def test_no_choice_shows_best_and_worst_of_the_newest_lease_and_none_twice(tmp_path: Path) -> None:
    assert headings(text(trained(tmp_path))) == ["00000003/0#0", "00000003/1#0"]


def test_of_many_episodes_three_of_each_end_of_the_newest_kept_lease_are_shown() -> None:
    lines = [Line((mint, 0), 2, float(mint % 5), True, True) for mint in range(1, 9)]
    lines += [Line((9, 0), 1, 99.0, True, True), Line((10, 0), 3, 99.0, True, False)]
    assert [mint for mint, _ in choose(Choice(), lines, Path())] == [4, 3, 8, 1, 6, 5]
    assert [mint for mint, _ in choose(Choice(), lines[:4], Path())] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("leases", "said"),
    [
        ([None], "it has no lease yet"),
        ([1, None], "its only lease is 1"),
        ([1, 2, 1], "its leases are numbered 1 to 2"),
    ],
)
def test_a_lease_that_is_not_there_is_answered_with_those_that_are(
    leases: list[int | None], said: str
) -> None:
    lines = [Line((mint, 0), lease, 0.0, True, True) for mint, lease in enumerate(leases)]
    with pytest.raises(StoreError, match=f"^RUN has no lease 9: {said}$"):
        choose(Choice(lease=9), lines, Path("RUN"))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"group": "00000002"}, ["00000002/0#0", "00000002/1#0"]),
        ({"group": "2"}, ["00000002/0#0", "00000002/1#0"]),
        ({"group": "00000002/1#0"}, ["00000002/0#0", "00000002/1#0"]),
        ({"lease": 1}, ["00000001/0#0", "00000001/1#0"]),
        ({"last": 3}, ["00000002/1#0", "00000003/0#0", "00000003/1#0"]),
        ({"best": 2}, ["00000003/0#0", "00000002/0#0"]),
        ({"worst": 1}, ["00000003/1#0"]),
    ],
)
def test_a_choice_shows_exactly_those_episodes(
    choice: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    assert headings(text(trained(tmp_path), **choice)) == names


def test_every_token_has_a_line_with_version_age_logprob_and_advantage(tmp_path: Path) -> None:
    run = trained(tmp_path)
    shown = text(run, tokens=True, best=1)
    (episode,) = read_episodes(run, Choice(best=1))
    lines = [line.split(maxsplit=8) for line in shown.split("advantage  text\n")[1].splitlines()]
    assert len(lines) == episode.trajectories[0].meta.num_tokens
    sampled = [line for line in lines if line[3] == "sampled"]
    assert len(sampled) == episode.trajectories[0].meta.num_sampled
    assert {(line[4], line[5]) for line in sampled} == {("3", "0")}
    assert {line[6] for line in sampled} == {"-0.0500", "-3.0000"}
    assert {line[7] for line in sampled} == {"+0.7071"}
    assert all(line[4:8] == ["-"] * 4 for line in lines if line[3] != "sampled")


#: Every episode samples more, and loses 1.
LENGTHS = "overlong_max_length = 1\noverlong_buffer_length = 1"


@pytest.mark.parametrize(
    ("setting", "advantages"),
    [
        ("", [0.7071, -0.7071]),
        ("disable_grpo_std_normalization = true", [1.5, -1.5]),
        ("disable_rewards_normalization = true", [3.0, 0.0]),
        (f"disable_rewards_normalization = true\n{LENGTHS}", [2.0, -1.0]),
        ("overlong_filter = true", [0.7071, -0.7071]),
        ('loss_type = "custom_loss"', [0.7071, -0.7071]),
        ('loss_type = "sft_loss"', [None, None]),
        ("a_flag_of_the_next_release = 1", [0.7071, -0.7071]),
    ],
)
def test_an_advantage_is_that_of_the_judged_rewards_by_the_rule_of_the_run(
    setting: str, advantages: list[float | None], tmp_path: Path
) -> None:
    run = trained(tmp_path)
    with (run / "config.toml").open("a") as file:
        file.write(setting + "\n")
    shown = read_episodes(run, Choice(lease=3))
    assert [episode.advantage for episode in shown] == pytest.approx(advantages, abs=1e-4)


def test_a_rule_of_the_users_is_not_run_to_look_at_a_run(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (run / "config.toml").write_text('advantage_estimator = "nowhere.py:Ours"\n')
    assert [episode.advantage for episode in read_episodes(run, Choice(lease=3))] == [None, None]


def test_the_rule_of_another_release_is_named(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (run / "config.toml").write_text('loss_type = "ours"\n')
    with pytest.raises(StoreError, match=r"config\.toml: Invalid enum value 'ours'.*release"):
        read_episodes(run, Choice())


def test_an_episode_whose_group_is_not_judged_has_no_advantage(tmp_path: Path) -> None:
    run = ViewedRun(tmp_path)
    run.say("driver", Tasks([Task("t", {})], 1))
    (first, second) = read_episodes(run.close(), Choice(group="1"))
    assert first.advantage is second.advantage is None
    shown = text(tmp_path, group="1")
    assert "advantage:  -" in shown
    assert shown.count("outcome:    not ended") == shown.count("reward:     none") == 2


def test_ages_are_those_of_the_lease_that_trained_the_token(tmp_path: Path) -> None:
    run = ViewedRun(tmp_path)
    run.train(1, "a")
    run.train(2, "b", version=1)
    run.train(3, "c", version=2)
    run.close()
    for lease, age in ((1, 0), (2, 1), (3, 1)):
        (episode, _) = read_episodes(tmp_path, Choice(lease=lease))
        columns, ages = episode.trajectories[0].columns, episode.trajectories[0].ages
        assert columns is not None
        assert ages is not None
        sampled = columns["kinds"] == SpanKind.SAMPLED
        assert set(ages[sampled]) == {age}
        assert set(ages[~sampled]) == {-1}


def test_a_run_that_kept_nothing_says_why_and_still_shows_facts(tmp_path: Path) -> None:
    run = trained(tmp_path, keep=0)
    assert segments_in(run / "payload") == []
    with pytest.raises(
        StoreError, match=r"its 6 done episodes were let go.*--keep-trajectories was 0"
    ):
        read_episodes(run, Choice())
    shown = text(run, group="00000001")
    assert shown.count("its tokens are not kept: segment 1 was let go") == 2
    assert "reward:     1" in shown


def test_a_run_without_a_done_episode_does_not_blame_the_bound(tmp_path: Path) -> None:
    run = ViewedRun(tmp_path)
    run.say("driver", Tasks([Task("t", {})], 1))
    assert read_episodes(run.close(), Choice()) == []


def test_an_episode_that_is_not_done_has_no_reward(tmp_path: Path) -> None:
    run = ViewedRun(tmp_path)
    episode, _ = run.mint("Which river?")
    filtered = EpisodeReport(episode.id, Outcome.FILTERED, StopReason.CONTEXT_LIMIT, [])
    run.say("worker", Finished(filtered))
    run.close()
    shown = read_episodes(tmp_path, Choice(group="1"))
    assert [each.row.outcome for each in shown] == [Outcome.FILTERED, None]
    assert [(each.reward, each.roles) for each in shown] == [(None, {})] * 2
    assert text(tmp_path, group="1").count("reward:     none") == 2
    made = page("run", shown, load_vocab(tmp_path), tokens=False)
    assert made.count("<dt>reward</dt><dd>none</dd>") == 2


def test_an_episode_without_a_reward_ranks_below_every_other() -> None:
    lines = [
        Line((1, 0), 1, None, False, False, failed=True),
        Line((2, 0), 1, -1.0, True, True, failed=True),
        Line((3, 0), 1, 0.0, True, True, failed=True),
    ]
    for choice, mints in (
        (Choice(best=3, failed=True), [3, 2, 1]),
        (Choice(worst=1, failed=True), [1]),
    ):
        assert [mint for mint, _ in choose(choice, lines, Path())] == mints


def test_only_the_newest_trajectories_are_kept_within_the_bound(tmp_path: Path) -> None:
    columns, _ = trajectory("Which city?", "Paris", 1)
    each = sum(column.nbytes for column in columns)
    run = trained(tmp_path, keep=2 * each + 10, segment_bytes=1)
    assert len(segments_in(run / "payload")) == 2
    assert headings(text(run, last=9)) == ["00000003/0#0", "00000003/1#0"]


def test_a_damaged_trajectory_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (segment,) = (run / "payload").iterdir()
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    shown = text(run)
    assert shown.count("its tokens are not kept: payload 1:") == 1
    assert shown.count("-- turn 1, assistant --") == 1
