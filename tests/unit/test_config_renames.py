"""Flags that have another name today: on a command line, and in a file."""

from pathlib import Path

import pytest

from agentrl.cli.train import main
from agentrl.config import answers
from agentrl.config.command_line import read_flags
from agentrl.config.files import read_file
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError

SELECTIVE = {"megatron": {"recompute_granularity": "selective"}}
REPLAY = {"megatron": {"moe_enable_routing_replay": True}}
NO_REPLAY = {"megatron": {"moe_enable_routing_replay": False}}
SIZES = {"sglang": {"cuda_graph_bs_decode": [1, 2]}}


def flags() -> list[str]:
    return [name for name, row in answers.rows().items() if row.renamed]


@pytest.mark.parametrize("name", flags())
def test_each_is_accepted_and_told_its_name_of_today(name: str) -> None:
    row = answers.rows()[name]
    value = {"backend": "tilelang", "strategy": "no_buffer"}.get(name.split("-")[-1], "8")
    given = read_flags([name, value] if row.takes else [name])
    assert (given.refused, len(given.values)) == ([], 1)
    (line,) = answers.notes(given.asked)
    assert line.startswith(f"{name} is {row.renamed} here: ")


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ("--recompute-activations", SELECTIVE),
        ("--no-recompute-activations", {}),
        ("--use-routing-replay", REPLAY),
        ("--use_routing_replay", REPLAY),
        ("--no-use-routing-replay", NO_REPLAY),
        ("--sglang-cuda-graph-bs 1 2", SIZES),
        ("--sglang-cuda-graph-bs 1 2 --lr 3", SIZES | {"lr": 3.0}),
    ],
)
def test_the_flag_of_today_is_read_in_its_place(argv: str, values: dict[str, object]) -> None:
    given = read_flags(argv.split())
    assert (given.values, given.refused) == (values, [])


@pytest.mark.parametrize("value", [["=3"], ["", "3"]])
@pytest.mark.parametrize("name", ["--recompute-activations", "--use-routing-replay"])
def test_a_value_too_many_is_told_under_the_name_that_was_written(
    name: str, value: list[str]
) -> None:
    given = read_flags([name + value[0], *value[1:], "--lr", "1"])
    assert given.refused == [f"{name} takes no value; '3' is too much"]
    assert given.values == {"lr": 1.0}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("use_routing_replay = true", REPLAY),
        ("use_routing_replay = false", NO_REPLAY),
        ("recompute_activations = true", SELECTIVE),
        ("[megatron]\nrecompute_activations = true", SELECTIVE),
        ("[megatron]\nrecompute_activations = false", {"megatron": {}}),
        ("[sglang]\ncuda_graph_bs = [1, 2]", SIZES),
    ],
)
def test_a_file_may_say_them_too(tmp_path: Path, text: str, values: dict[str, object]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    given = read_file(file)
    assert (given.values, given.refused) == (values, [])


def test_a_run_is_begun_with_one() -> None:
    resolved = parse(["--device", "cpu", "--use-routing-replay"], "train")
    assert resolved.config.megatron == REPLAY["megatron"]
    with pytest.raises(ConfigError, match="--sglang-cuda-graph-bs needs a value"):
        parse(["--sglang-cuda-graph-bs"], "train")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--sglang-nsa-prefill-backend flashmla",
            "--sglang-nsa-prefill-backend (--sglang-dsa-prefill-backend here) cannot be 'flashmla'",
        ),
        ("--use-routing-replay", "which --use-routing-replay (--moe-enable-routing-replay here)"),
        ("--use-rollout-routing-replay", "which --use-rollout-routing-replay ("),
    ],
)
def test_what_is_refused_is_told_under_the_name_that_was_written(
    argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", "--dry-run", *argv.split()], "train_async") == 2
    assert said in capsys.readouterr().err
    config = ["--sglang-nsa-prefill-backend", "tilelang", "--turn-timeout-s", "1e9"]
    with pytest.raises(ConfigError) as caught:
        parse(["--device", "cpu", *config], "train_async")
    assert "-prefill-backend" not in str(caught.value)


def test_a_name_of_a_file_is_told_as_it_stands_there(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[sglang]\nnsa_prefill_backend = 'flashmla'\n")
    (line,) = read_file(file).refused
    assert line.startswith("nsa_prefill_backend (--sglang-dsa-prefill-backend here) cannot be")
