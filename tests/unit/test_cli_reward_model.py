"""The address of a reward that asks a model is looked at before anything starts."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.reward_model import check_reward_model
from agentrl.cli.train import run
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


@pytest.fixture
def listening() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://me:secret@127.0.0.1:{server.getsockname()[1]}/score?key=secret"


@pytest.fixture
def dead() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    return f"http://me:secret@127.0.0.1:{port}/score?key=secret"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a", "label": "b"}\n')
    return path


def config(rows: Path, **args: Any) -> RunConfig:
    return RunConfig(env="single-turn", prompt_data=str(rows), env_args=args)


def test_an_address_where_somebody_listens_is_taken(rows: Path, listening: str) -> None:
    assert check_reward_model(config(rows, rm_type="judge", rm_url=listening)) == []


def test_a_dead_one_is_refused_and_noted_in_a_dry_run(rows: Path, dead: str) -> None:
    told = config(rows, rm_type="remote_rm", rm_url=dead)
    with pytest.raises(ConfigError, match=r"nobody listens there .*; start the reward") as refused:
        check_reward_model(told)
    (note,) = check_reward_model(told, dry_run=True)
    assert "not reached from here, and a run needs it" in note
    assert "secret" not in f"{refused.value}{note}"


@pytest.mark.parametrize("url", ["127.0.0.1:9000/score", "http://", "http://host:port/score"])
def test_what_is_no_address_is_refused_in_a_dry_run_too(rows: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="an address is wanted, as in http"):
        check_reward_model(config(rows, rm_type="judge", rm_url=url), dry_run=True)


@pytest.mark.parametrize("args", [{}, {"rm_type": "exact"}, {"reward": "exact"}])
def test_one_that_nothing_asks_is_not_looked_at(
    rows: Path, dead: str, args: dict[str, str]
) -> None:
    assert check_reward_model(config(rows, rm_url=dead, **args)) == []


def test_rows_and_evaluation_sets_may_ask_too(rows: Path, dead: str) -> None:
    asking = rows.with_name("asking.jsonl")
    asking.write_text(json.dumps({"input": "a", "metadata": {"rm_type": "judge"}}) + "\n")
    assert check_reward_model(config(asking, rm_url=dead), dry_run=True)
    held = RunConfig(
        env="single-turn",
        prompt_data=str(rows),
        env_args={"rm_url": dead},
        eval_prompt_data=["held", str(asking)],
    )
    assert check_reward_model(held, dry_run=True)


def test_the_program_says_it(rows: Path, dead: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--prompt-data {rows} --env single-turn --rm-type judge --rm-url {dead} --dry-run"
    assert run(["--preset", "search-r1-local", *flags.split()], "train_async") == 0
    assert "/score: not reached from here, and a run needs it" in capsys.readouterr().out
