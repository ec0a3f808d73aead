"""What a continued run may change, against a ledger whose groups are open."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentrl.envs.search_r1
from agentrl.buffer import BufferCore, BufferSettings
from agentrl.buffer.events import Effect, FromPeer, Persist, Send
from agentrl.buffer.ledger import Ledger, LedgerReader
from agentrl.cli.train import main
from agentrl.config.fields import own_fields
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.envs.chat_formats import with_chat_format
from agentrl.errors import ConfigError
from agentrl.types import SamplingParams
from agentrl.wire.messages import Assign, Capacity, Hello, Message, Welcome
from tests.unit.flag_values import VALUES
from tests.unit.viewed_run import ViewedRun

pytestmark = pytest.mark.slow

MODEL = str(Path(agentrl.envs.search_r1.__file__).parent / "model")
#: What the run is begun with.
BEGUN = [
    *("--env", "search-r1-local", "--hf-checkpoint", MODEL),
    *("--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--num-rollout", "3"),
    *("--rollout-max-response-len", "64", "--rollout-max-context-len", "512"),
    *("--max-turns", "3", "--actor-num-gpus-per-node", "1"),
]
KINDS = ("fixed", "may fall")
FIXED = {name for name, field in own_fields().items() if field.fact.on_resume.kind in KINDS}
#: Another value of each field that stays; the words of its flag.
OTHER = {name: VALUES.get(name, "").split() for name in sorted(FIXED - {"min_group_size"})}
OTHER["env_mix"] = ['{"parts":[{"name":"a"}]}']
#: Fields that are arguments of `--env single-turn` alone.
OF_ROWS = {"custom_rm_path", "group_rm", "input_key", "label_key", "rm_type", "rm_url"}


def settings_of(config: RunConfig) -> BufferSettings:
    """As the buffer's process makes them."""
    sampling = SamplingParams(
        temperature=config.rollout_temperature, max_new_tokens=config.rollout_max_response_len
    )
    return BufferSettings.from_config(config, "ipc:///none", sampling)


def begin(folder: Path, *flags: str) -> Path:
    """A run that was killed: a group is trained, and of another one episode is done."""
    folder.mkdir()
    config = parse([*BEGUN, *flags], "train_async").config
    write_config(folder / "config.toml", config)
    one = msgspec.structs.replace(config, rollout_batch_size=1)
    run = ViewedRun(folder, settings=settings_of(one))
    run.train(1, "Which city?")
    first, _ = run.mint("Which river?")
    run.finish(first, "Which river?", "Seine", version=2, reward=1.0)
    return run.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begin(tmp_path_factory.mktemp("runs") / "killed")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize("name", sorted(OTHER.keys() - OF_ROWS))
def test_what_stored_rows_rest_on_is_refused(killed: Path, name: str) -> None:
    before = (killed / "ledger.db").read_bytes()
    with pytest.raises(
        ConfigError, match=rf"(?m)^{flag(name)} .*, but .* was begun with(out it)? "
    ):
        parse(["--resume", str(killed), flag(name), *OTHER[name]], "train_async")
    assert (killed / "ledger.db").read_bytes() == before


@pytest.mark.parametrize("name", sorted(OF_ROWS))
def test_what_stored_rows_of_prompts_rest_on_is_refused(tmp_path: Path, name: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "q", "question": "q", "answer": "a", "label": "l"}\n')
    begun = ["--env", "single-turn", "--prompt-data", str(rows)]
    run = begin(tmp_path / "r", *begun)
    with pytest.raises(ConfigError, match=f"{flag(name)} .*, but .* was begun with(out it)? "):
        parse(["--resume", str(run), flag(name), *OTHER[name]], "train_async")


def test_the_dry_run_refuses_it_too_and_names_all_of_it(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--rollout-temperature", "0.5", "--chat-format", "tags"]
    assert main(["--resume", str(killed), *changes, "--dry-run"], "train_async") == 2
    said = capsys.readouterr().err
    assert "--rollout-temperature 0.5, but" in said
    assert "--chat-format tags, but" in said
    assert "were played under that" in said


def test_a_run_goes_on_with_the_chat_format_that_is_stored(killed: Path) -> None:
    """One of before formats were found from models has `qwen`, whatever its model speaks."""
    path = killed / "config.toml"
    for stored in ("qwen", "qwen3"):
        lines = [each for each in path.read_text().splitlines() if "chat_format" not in each]
        path.write_text("\n".join([f'chat_format = "{stored}"', *lines]))
        config = parse(["--resume", str(killed)], "train_async").config
        assert with_chat_format(config)[0].chat_format == stored
        other = {"qwen": "qwen3", "qwen3": "qwen"}[stored]
        said = f"--chat-format {other}, but .* was begun with {stored} "
        with pytest.raises(ConfigError, match=said):
            parse(["--resume", str(killed), "--chat-format", other], "train_async")


def test_what_is_said_again_is_no_change(killed: Path) -> None:
    config = parse(["--resume", str(killed), *BEGUN, "--min-group-size", "2"], "train_async").config
    assert config.resume == str(killed)


def test_fewer_episodes_may_make_a_group_but_not_more(tmp_path: Path) -> None:
    run = begin(tmp_path / "r", "--min-group-size", "1")
    with pytest.raises(ConfigError, match=r"--min-group-size 2, but .* ready with so many"):
        parse(["--resume", str(run), "--min-group-size", "2"], "train_async")
    other = begin(tmp_path / "other")
    assert parse(["--resume", str(other), "--min-group-size", "1"], "train_async")


# ---- what is free goes on from the same rows ----------------------------------------------------

GOES_ON: list[dict[str, Any]] = [
    {"async_buffer_size": 0},
    {"async_buffer_size": 4},
    {"update_weights_interval": 3},
    {"max_staleness": 0},
    {"staleness_policy": "drop"},
    {"partial_rollout": False},
    {"over_sampling_batch_size": 4},
    {"num_rollout": 9},
    {"min_group_size": 1},
    {"keep_trajectories": 0},
    {"buffer_disk_limit": 10**9},
    {"max_turns": 5},
    {"max_tool_calls": 1},
    {"rollout_max_response_len": 32},
]


def test_other_limits_of_an_episode_are_noted(killed: Path) -> None:
    notes = parse(["--resume", str(killed), "--max-turns", "5"], "train_async").notes
    begun = f"--max-turns 5, but {killed} was begun with 3"
    assert f"{begun} and groups that are open go on with episodes of both" in notes


def words(changes: dict[str, Any]) -> list[str]:
    (name, value), *_ = changes.items()
    return ["--no-partial-rollout"] if value is False else [flag(name), str(value)]


@pytest.mark.parametrize("changes", GOES_ON, ids=str)
def test_a_buffer_plays_the_open_group_to_its_end_under_what_is_free(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = begin(tmp_path / "r")
    config = parse(["--resume", str(run), *words(changes)], "train_async").config
    assert [getattr(config, name) for name in changes] == [*changes.values()]
    with LedgerReader(run / "ledger.db") as ledger:
        state = ledger.load()
    (group,) = state.groups
    core = BufferCore(settings_of(config), state)
    with Ledger(run / "ledger.db") as ledger:
        effects = core.handle(FromPeer("worker", 0, 0, Hello("worker", "worker", "2")), 0.0)
        (epoch,) = [m.epoch for m in sent(effects) if isinstance(m, Welcome)]
        effects += core.handle(FromPeer("worker", epoch, 1, Capacity(100)), 0.0)
        ledger.commit([effect.row for effect in effects if isinstance(effect, Persist)])
    (assigned,) = [m.episodes for m in sent(effects) if isinstance(m, Assign)]
    # Its sibling is done and is not played again.
    assert [(e.mint, e.id.index, e.sampling.temperature) for e in assigned] == [(group.mint, 1, 1)]


def sent(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]
