"""MLflow: what it is told. A stand-in takes the calls in the package's own signatures and refuses
what MLflow refuses (`tests/standins/mlflow`)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.errors import EnvironmentSetupError
from tests.tracked import calls, opened, resolved, standing_in, write

#: Each is gone when the start is over.
START = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_DISABLE_TELEMETRY")


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in START:
        monkeypatch.delenv(name, raising=False)
    with standing_in("mlflow", monkeypatch) as package:
        yield package


def test_mlflow_is_told_every_number_under_names_that_it_takes(
    mlflow: ModuleType, tmp_path: Path
) -> None:
    write(resolved("--use-mlflow --num-steps-per-rollout 2"), tmp_path)

    (run,) = mlflow.RUNS.values()
    assert run.data.metrics == [
        ("eval/held/score", 0.25, 0),
        ("eval/held/n", 4, 0),
        ("eval/held/pass_at_4", 0.5, 0),
        ("rollout/reward_mean", 0.5, 1),
        ("train/loss", -0.1, 2),
        ("rollout/reward_mean", 0.5, 2),
        ("train/loss", -0.1, 4),
    ]
    assert run.info.status == "FINISHED"


def test_the_run_begins_as_the_flags_say(mlflow: ModuleType, tmp_path: Path) -> None:
    flags = (
        "--use-mlflow --mlflow-tracking-uri http://127.0.0.1:5000 --mlflow-run-name first "
        "--mlflow-experiment-name agents"
    )
    write(resolved(flags), tmp_path)

    assert calls(mlflow, "client") == [
        {"uri": "http://127.0.0.1:5000", START[0]: "2", START[1]: "true"}
    ]
    assert not [name for name in START if name in os.environ]
    assert calls(mlflow, "create_experiment") == [{"name": "agents"}]
    assert calls(mlflow, "create_run") == [
        {"experiment_id": "1", "run_name": "first", "tags": {"agentrl.run_id": "run-7"}}
    ]
    (run,) = mlflow.RUNS.values()
    assert run.data.params["rollout_batch_size"] == str(resolved(flags).rollout_batch_size)
    assert run.data.params["mlflow_run_name"] == "first"


def test_what_the_environment_says_of_mlflow_stays(
    mlflow: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    monkeypatch.setenv(START[0], "5")
    write(resolved("--use-mlflow"), tmp_path)

    assert calls(mlflow, "create_experiment") == [{"name": "ours"}]
    assert calls(mlflow, "client")[0][START[0]] == os.environ[START[0]] == "5"


def test_a_continued_run_goes_on_in_its_run_and_keeps_its_parameters(
    mlflow: ModuleType, tmp_path: Path
) -> None:
    write(resolved("--use-mlflow"), tmp_path, exit_code=1)
    (run,) = mlflow.RUNS.values()
    assert run.info.status == "FAILED"
    del run.data.params["seed"]

    write(resolved("--use-mlflow --lr 0.5 --seed 9"), tmp_path)

    assert list(mlflow.RUNS.values()) == [run]
    assert (run.info.status, len(run.data.metrics)) == ("FINISHED", 14)
    assert (run.data.params["seed"], run.data.params["lr"]) == ("9", str(resolved("").lr))


def test_a_run_that_the_server_does_not_have_begins_there(
    mlflow: ModuleType, tmp_path: Path
) -> None:
    for uri in ("http://one:1", "http://two:1"):
        write(resolved(f"--use-mlflow --mlflow-tracking-uri {uri}"), tmp_path)
    (deleted,) = [run for (uri, _), run in mlflow.RUNS.items() if uri == "http://two:1"]
    deleted.info.lifecycle_stage = "deleted"
    write(resolved("--use-mlflow --mlflow-tracking-uri http://two:1"), tmp_path)

    assert [uri for uri, _ in mlflow.RUNS] == ["http://one:1", "http://two:1", "http://two:1"]
    known = json.loads((tmp_path / "mlflow.json").read_bytes())
    assert known["id"] == list(mlflow.RUNS)[-1][1]


def test_a_server_that_will_not_say_whether_it_has_the_run_ends_the_start(
    mlflow: ModuleType, tmp_path: Path
) -> None:
    write(resolved("--use-mlflow"), tmp_path)
    mlflow.RECORDED.fail("get_run", "the server is down")
    with pytest.raises(EnvironmentSetupError, match="the server is down"):
        write(resolved("--use-mlflow"), tmp_path)


def test_a_store_of_files_has_no_curve_below_a_curve(mlflow: ModuleType, tmp_path: Path) -> None:
    sink = opened(resolved(f"--use-mlflow --mlflow-tracking-uri {tmp_path}/mlruns"), tmp_path)
    sink.write(1, {"train/ess": 0.9, "train/ess/0": 1.0}, {})
    sink.close()
    (run,) = mlflow.RUNS.values()
    assert [name for name, _, _ in run.data.metrics] == ["train/ess", "train/ess.0"]


def test_long_values_and_many_metrics_fit_into_requests(mlflow: ModuleType, tmp_path: Path) -> None:
    long = "x" * 600
    sink = opened(resolved(f"--use-mlflow --wandb-project {long}"), tmp_path)
    sink.write(1, {f"train/custom_{number}": 1.0 for number in range(1001)}, {})
    sink.close()
    (run,) = mlflow.RUNS.values()
    assert len(run.data.metrics) == 1001
    assert run.data.params["wandb_project"] == "x" * 497 + "..."
