"""A Python without SGLang starts no run that needs it, and says what to do."""

import sys

import pytest

from agentrl.cli import main as cli
from agentrl.cli.train import main
from agentrl.config.engine_packages import check_engine_packages
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

DRY = ["--preset", "search-r1-local", "--dry-run"]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install .` on a host without a GPU."""
    monkeypatch.setitem(sys.modules, "sglang", None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("dry", [True, False], ids=["dry run", "run"])
def test_a_run_that_starts_engines_ends_before_it_begins_with_one_line(
    dry: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(DRY if dry else DRY[:-1], "train_async") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train_async: this Python lacks sglang, and a run starts engines with")
    assert "`make setup`" in line
    assert "`pip install '.[gpu]'`" in line


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    "config",
    [
        RunConfig(ray_address="10.0.0.1:6379"),
        RunConfig(rollout_external_engine_addrs=["http://10.0.0.2:30000"]),
        RunConfig(loss_type="sft_loss"),
        RunConfig(load_debug_rollout_data="rollouts/{rollout_id}"),
    ],
    ids=["on a cluster", "engines of somebody else", "imitation", "rollouts of files"],
)
def test_nobody_asks_for_engines_that_this_host_does_not_start(config: RunConfig) -> None:
    check_engine_packages(config)


def test_the_router_is_needed_in_front_of_any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang_router", None)
    with pytest.raises(EnvironmentSetupError, match="lacks sglang_router, and"):
        check_engine_packages(RunConfig(rollout_external_engine_addrs=["http://10.0.0.2:30000"]))


@pytest.mark.parametrize(("name", "program"), [("train-async", "train_async"), ("train", "train")])
def test_an_installed_package_trains_by_a_command(
    name: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: python {program}.py")
    assert cli.main([name, *DRY]) == 0
    assert capsys.readouterr().out.endswith("nothing was started (--dry-run)\n")
