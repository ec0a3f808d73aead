"""A stand-in for the package mlflow: the calls that agentrl makes, recorded, in the signatures of
mlflow-skinny 3 (https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html), and
refused where MLflow refuses them. What a server would keep is in `RUNS`, by address."""

import os
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.standins.recorded import Recorded

from .entities import Metric, Param
from .exceptions import MlflowException

__all__ = ["RECORDED", "RUNS", "MlflowClient"]

RECORDED = Recorded(MlflowException)
RUNS: dict[tuple[str, str], SimpleNamespace] = {}
_EXPERIMENTS: dict[str, str] = {"Default": "0"}
_NAME = re.compile(r"[/\w.\- :]+")


class MlflowClient:
    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///m"
        names = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_DISABLE_TELEMETRY")
        RECORDED("client", uri=self.tracking_uri, **{name: os.environ.get(name) for name in names})

    def get_experiment_by_name(self, name: str) -> Any:
        RECORDED("get_experiment_by_name", name=name)
        found = _EXPERIMENTS.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(
        self,
        name: str,
        artifact_location: str | None = None,
        tags: dict[str, Any] | None = None,
    ) -> str:
        RECORDED("create_experiment", name=name)
        return _EXPERIMENTS.setdefault(name, str(len(_EXPERIMENTS)))

    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: dict[str, Any] | None = None,
        run_name: str | None = None,
    ) -> Any:
        RECORDED("create_run", experiment_id=experiment_id, run_name=run_name, tags=tags)
        id = f"{len(RUNS):032x}"
        run = SimpleNamespace(
            info=SimpleNamespace(
                run_id=id, run_name=run_name, status="RUNNING", lifecycle_stage="active"
            ),
            data=SimpleNamespace(params={}, metrics=[]),
        )
        RUNS[self.tracking_uri, id] = run
        return run

    def get_run(self, run_id: str) -> Any:
        RECORDED("get_run", run_id=run_id)
        if (self.tracking_uri, run_id) not in RUNS:
            raise MlflowException(f"Run '{run_id}' not found", "RESOURCE_DOES_NOT_EXIST")
        return RUNS[self.tracking_uri, run_id]

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        RECORDED("update_run", run_id=run_id, status=status)
        self.get_run(run_id).info.status = status

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[Any] = (),
        synchronous: bool | None = None,
    ) -> None:
        RECORDED("log_batch", metrics=metrics, params=params)
        if len(metrics) > 1000 or len(params) > 100:
            raise MlflowException("A batch logging request can contain at most ...")
        known = self.get_run(run_id).data
        for name in (*(each.key for each in metrics), *(each.key for each in params)):
            if not _NAME.fullmatch(name):
                raise MlflowException(f"Invalid value {name!r} for parameter")
        for param in params:
            if known.params.setdefault(param.key, param.value) != param.value:
                raise MlflowException(f"Changing param values is not allowed: {param.key!r}")
        known.metrics += [(each.key, each.value, each.step) for each in metrics]

    def set_terminated(
        self, run_id: str, status: str | None = None, end_time: int | None = None
    ) -> None:
        RECORDED("set_terminated", run_id=run_id, status=status)
        self.get_run(run_id).info.status = status
