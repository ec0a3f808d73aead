"""The pages for those who come from verl, AReaL and TRL: their tables and their worked examples."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config import peers
from agentrl.config.command_line import known_flags, read_flags
from agentrl.config.fields import own_fields
from agentrl.config.resolve import parse
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError
from scripts.from_peers import pages
from tests.unit.page_snippets import ROOT, snippets

pytestmark = pytest.mark.slow

PEERS = peers.settings()
FLAG = re.compile(r"--[a-z][a-z-]*")


def page(peer: str) -> str:
    return (ROOT / "docs" / f"from-{peer.lower()}.md").read_text()


# ---- the tables ---------------------------------------------------------------------------------


def test_the_pages_have_the_settings_that_the_command_line_knows() -> None:
    for place, made in pages().items():
        text = place.read_text()
        assert made(text) == text, "run python -m scripts.from_peers"


@pytest.mark.parametrize("peer", PEERS)
def test_a_page_and_the_command_line_name_the_same_flag_of_a_setting(peer: str) -> None:
    for name, setting in PEERS[peer].items():
        if setting.says.startswith("-"):
            assert FLAG.findall(setting.cell)[:1] == [setting.flag], name
        else:
            assert not FLAG.findall(setting.cell), name


@pytest.mark.parametrize("peer", PEERS)
def test_the_defaults_that_a_page_says_are_those_of_the_flags(peer: str) -> None:
    """`32 here`, `1.0 in both`, `off here` in the third cell of a row."""
    own = {field.flag: field for field in own_fields().values()}
    found = re.findall(
        r"^\| `[\w.]+` \| `(--[\w-]+)`.*\|.*?([\w.+-]+)[*`]* (?:here|in both)\b",
        page(peer),
        re.MULTILINE,
    )
    said = {flag: word for flag, word in found if flag in own and DEFAULT.fullmatch(word)}
    assert len(said) > 5
    assert said == {flag: told_default(own[flag].default) for flag in said}


#: A word before `here` that is a default.
DEFAULT = re.compile(r"-?\d[\d.e-]*|on|off|constant|never")


def told_default(value: object) -> str:
    if isinstance(value, bool | None):
        return "on" if value else "off"
    return str(value).replace("e-0", "e-")


@pytest.mark.parametrize("peer", PEERS)
def test_what_a_user_of_a_peer_is_told_names_flags_that_exist(peer: str) -> None:
    told = {flag for setting in PEERS[peer].values() for flag in FLAG.findall(setting.says)}
    assert told <= set(known_flags())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["actor_rollout_ref.rollout.n=8"],
            "'actor_rollout_ref.rollout.n=8': agentrl calls it --n-samples-per-prompt (docs/from-v",
        ),
        (["--lr", "1e-6", "+trainer.logger=[console]"], "TensorBoard are always written"),
        (["gconfig.n_samples=4"], "--n-samples-per-prompt (docs/from-areal.md)"),
        (["gconfig.frequency_penalty=1"], "AReaL has it"),
        (["rollout.backend=sglang:d4"], "docs/from-verl.md and docs/from-areal.md"),
        (["--beta", "0.04"], "--kl-loss-coef with --use-kl-loss --kl-loss-type k3"),
        (
            ["--max_completion_length", "512"],
            "--rollout-max-context-len bounds prompt and response",
        ),
        (["hello=1"], "values follow their flag"),
        (["hello"], "values follow their flag"),
    ],
)
def test_a_setting_of_a_peer_on_the_command_line_is_told_what_to_write(
    argv: list[str], said: str
) -> None:
    (line,) = read_flags(argv).refused
    assert said in line


def test_every_setting_on_a_command_line_is_answered_at_once() -> None:
    refused = read_flags(["data.train_batch_size=8", "trainer.nnodes=2", "--use-tis"]).refused
    assert [line.split("'")[1] for line in refused] == [
        "data.train_batch_size=8",
        "trainer.nnodes=2",
    ]


def test_a_configuration_file_of_a_peer_is_told_the_flag_of_each_setting(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "experiment_name: x\n"
        "gconfig: {n_samples: 4, frequency_penalty: 0}\n"
        "actor: {optimizer: {lr: 1e-5, beta1: 0.9}}\n"
        "saver: {mode: auto}\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(file)], "train")
    told = [
        line.removeprefix(f"{file}: unknown setting ") for line in str(caught.value).split("\n")
    ]
    assert [line.partition(" (")[0] for line in told] == [
        "experiment_name: agentrl calls it --run-id",
        "gconfig.n_samples: agentrl calls it --n-samples-per-prompt",
        "actor.optimizer.lr: agentrl calls it --lr",
        "saver: AReaL has it; settings of it that agentrl has too: docs/from-areal.md",
    ]


def test_a_word_that_no_peer_has_gets_no_advice() -> None:
    assert peers.advice("hello") is None
    assert peers.advice("--hello.world") is None


# ---- the worked examples ------------------------------------------------------------------------


def put(grams: int) -> str:
    call = {"name": "put", "arguments": {"grams": grams}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>"


#: By peer: for each row of its example, what the policy says, turn by turn, and what that earns.
EPISODES: dict[str, list[tuple[list[str], float]]] = {
    "verl": [(["3 x 4 #### 12<|im_end|>"], 1.0), (["#### 31<|im_end|>"], 0.1)],
    "AReaL": [(["11<|im_end|>", "-<|im_end|>", "12<|im_end|>"], 0.25), (["1<|im_end|>"] * 3, 0.0)],
    "TRL": [
        ([put(3), put(4), "done<|im_end|>"], 1.1),
        ([put(13), "I have put thirteen grams on it<|im_end|>"], 0.0),
    ],
}


@pytest.mark.parametrize("peer", PEERS)
def test_the_worked_example_rewards_what_the_peers_own_would(peer: str, tmp_path: Path) -> None:
    found = list(snippets(page(peer)))
    (block,) = [snippet for snippet in found if snippet.language == "python"]
    (tmp_path / block.name).write_text(block.text)
    (rows,) = [snippet.text for snippet in found if snippet.text.startswith("printf")]
    subprocess.run(["bash", "-euc", rows], cwd=tmp_path, check=True, timeout=300)
    (tmp_path / "agentrl").symlink_to(ROOT / "agentrl")
    (command,) = [snippet.text for snippet in found if snippet.text.startswith("python train")]
    said = [turns for turns, _ in EPISODES[peer]]
    # In a process of its own, for an agent takes a name.
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.docs_examples", *shlex.split(command)[2:]],
        input=json.dumps(said),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx([reward for _, reward in EPISODES[peer]])


def test_verls_parquet_file_is_read_as_it_is(tmp_path: Path) -> None:
    """The rows of its example, as verl's own scripts write them."""
    (printf,) = [s.text for s in snippets(page("verl")) if s.text.startswith("printf")]
    subprocess.run(["bash", "-euc", printf], cwd=tmp_path, check=True, timeout=300)
    rows = [json.loads(line) for line in (tmp_path / "gsm8k.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "gsm8k.parquet")

    async def read(name: str) -> list[dict[str, Any]]:
        return [task.row async for task in RowSource(tmp_path / name).tasks()]

    assert anyio.run(read, "gsm8k.parquet") == rows == anyio.run(read, "gsm8k.jsonl")
