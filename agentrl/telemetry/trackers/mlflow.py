"""`MlflowTracker`: a run at MLflow; the only importer of mlflow.

MLflow has one axis for all curves, its step, so each family of metrics stands on it by its own
count: iterations for rollouts and evaluations, optimizer steps for training. It takes no
histograms. A parameter of a run keeps its value: a continued run adds parameters and changes none.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from agentrl.telemetry.trackers.base import (
    Beginning,
    Known,
    Session,
    Tracker,
    TrackerRow,
    environment,
)

__all__ = ["MlflowTracker"]

#: The most metrics, and parameters, of one request.
_MAX_METRICS, _MAX_PARAMS = 1000, 100
#: The longest value of a parameter that every release takes.
_MAX_VALUE = 500
#: Of the start, unless the environment says otherwise: it knows within a minute whether a server
#: answers. MLflow's reports of its own use stay off: where they reach nobody, their thread changes
#: the environment while a request reads it, and the request fails.
_START = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_REFUSED = re.compile(r"[^\w\-./ :]")


class MlflowTracker(Tracker, frozen=True, kw_only=True):
    """What the flags say of MLflow."""

    name: ClassVar[str] = "mlflow"
    title: ClassVar[str] = "MLflow"
    remedy: ClassVar[str] = (
        "give --mlflow-tracking-uri or MLFLOW_TRACKING_URI of a server that answers, with "
        "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, where it "
        "wants them; sqlite:///FILE without a server needs pip install mlflow"
    )

    mlflow_tracking_uri: str | None
    mlflow_experiment_name: str | None
    mlflow_run_name: str | None

    def begin(self, beginning: Beginning) -> "_MlflowSession":
        with environment({k: v for k, v in _START.items() if k not in os.environ}):
            from mlflow import MlflowClient

            client = MlflowClient(self.mlflow_tracking_uri)
            run = _before(client, beginning.known) or self._new(client, beginning)
            client.update_run(run.info.run_id, status="RUNNING")
            _show(client, run, beginning.config)
        return _MlflowSession(client, Known(run.info.run_id, run.info.run_name))

    def _new(self, client: Any, beginning: Beginning) -> Any:
        name = self.mlflow_experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = client.get_experiment_by_name(name)
        return client.create_run(
            client.create_experiment(name) if experiment is None else experiment.experiment_id,
            run_name=self.mlflow_run_name or beginning.run_id,
            tags={"agentrl.run_id": beginning.run_id},
        )


class _MlflowSession(Session):
    def __init__(self, client: Any, known: Known) -> None:
        self._client = client
        #: A store of files has a folder for train/ess/0, and cannot have the file train/ess too.
        self._is_flat = re.match(r"file:|[^:]*$", client.tracking_uri) is not None
        self.known = known

    def log(self, row: TrackerRow) -> None:
        from mlflow.entities import Metric

        time_ms = round(row.time_s * 1000)
        metrics = [
            Metric(self._name(name), float(value), time_ms, step)
            for step, scalars in row.by_step().items()
            for name, value in scalars.items()
        ]
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self.known.id, metrics=metrics[first : first + _MAX_METRICS])

    def finish(self, exit_code: int) -> None:
        self._client.set_terminated(self.known.id, "FAILED" if exit_code else "FINISHED")

    def _name(self, name: str) -> str:
        name = _REFUSED.sub("_", name.replace("@", "_at_"))
        family, slash, rest = name.partition("/")
        return family + slash + rest.replace("/", ".") if self._is_flat else name


def _before(client: Any, known: Known | None) -> Any:
    """The run that is continued, or None where the server has none."""
    from mlflow.exceptions import MlflowException

    if known is None:
        return None
    try:
        run = client.get_run(known.id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _show(client: Any, run: Any, config: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    params = [
        Param(name, _text(value)) for name, value in config.items() if name not in run.data.params
    ]
    for first in range(0, len(params), _MAX_PARAMS):
        client.log_batch(run.info.run_id, params=params[first : first + _MAX_PARAMS])


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."
