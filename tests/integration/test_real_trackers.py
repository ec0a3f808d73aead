"""MLflow and SwanLab as their packages are, offline: a store of files, and a folder of the run.

Their versions of other packages are not those of `make setup`, so each test is played in an
environment of its own. Stand-ins play the rest: `tests/unit/test_mlflow.py` and
`tests/unit/test_swanlab.py`.
"""

import importlib
from pathlib import Path

import pytest

from tests.over import is_played_over
from tests.tracked import resolved, write

pytestmark = pytest.mark.timeout(600)


def test_mlflow_keeps_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if is_played_over("trackers", "mlflow", request):
        return
    mlflow = importlib.import_module("mlflow")
    # MLflow 3.17 takes a store of files only where this says so.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    config = resolved(f"--use-mlflow --mlflow-tracking-uri {uri} --mlflow-experiment-name agents")
    write(config, tmp_path / "run", exit_code=1)

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("agents")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.tags["agentrl.run_id"] == "run-7"
    assert run.data.params["rollout_batch_size"] == str(config.rollout_batch_size)
    assert run.data.metrics["eval/held.pass_at_4"] == 0.5

    write(config, tmp_path / "run")  # continued: the same run, told more
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    told = client.get_metric_history(run.info.run_id, "train/loss")
    assert {(metric.step, metric.value) for metric in told} == {(2, -0.1), (4, -0.1)}


def test_swanlab_writes_what_it_is_told_offline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    if is_played_over("trackers", "swanlab", request):
        return
    monkeypatch.setenv("HOME", str(tmp_path))
    config = resolved("--use-swanlab --swanlab-mode offline --swanlab-project agents")
    write(config, tmp_path / "run")
    write(config, tmp_path / "run")
    (first, second) = sorted((tmp_path / "run" / "swanlab").glob("run-*"))
    for folder in (first, second):
        kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert b"train/loss" in kept
    assert not [record for record in caplog.records if record.exc_info]
