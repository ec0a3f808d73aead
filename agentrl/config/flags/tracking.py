"""Services that are told a run's metrics beside its own files."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from agentrl.config.facts import FREE, flag
from agentrl.config.flags.evaluation import EvaluationFlags

__all__ = ["TrackingFlags"]

_flag = partial(flag, group="tracking", on_resume=FREE, reaches_weights=False)
_wandb = partial(_flag, needs="wandb")
_mlflow = partial(_flag, needs="mlflow")
_swanlab = partial(_flag, needs="swanlab")
_Word = Annotated[str, msgspec.Meta(min_length=1)]
#: W&B makes a file name and an address of it.
_RunId = Annotated[str, msgspec.Meta(pattern=r"^[^/\\#?%:\s]{1,128}$")]


class TrackingFlags(EvaluationFlags, frozen=True, kw_only=True):
    use_wandb: Annotated[
        bool,
        _flag("Send metrics to Weights & Biases as well (in the clone, pip install '.[wandb]')"),
    ] = False
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        _wandb(
            "What becomes of metrics: online sends them, offline keeps them in files for `wandb "
            "sync`, disabled does nothing (default: WANDB_MODE, or online)"
        ),
    ] = None
    wandb_project: Annotated[
        _Word | None, _wandb("Project of the run (default: what W&B takes without one)")
    ] = None
    wandb_group: Annotated[
        _Word | None,
        _wandb("Group and name of the run, with a random suffix (default: no group, the run's id)"),
    ] = None
    disable_wandb_random_suffix: Annotated[
        bool, _wandb("Use --wandb-group as it is, without six random letters")
    ] = False
    wandb_team: Annotated[
        _Word | None, _wandb("Team or user that the run belongs to (default: that of the key)")
    ] = None
    wandb_key: Annotated[
        _Word | None,
        _wandb(
            "Key of the account; it is written nowhere, so a continued run wants it again, but "
            "other users of the host may see a command line (default: WANDB_API_KEY, or whoever "
            "is logged in)",
            secret=True,
            variable="WANDB_API_KEY",
        ),
    ] = None
    wandb_host: Annotated[
        _Word | None,
        _wandb(
            "Address of the server (default: WANDB_BASE_URL, or W&B's own)",
            holds="address",
            variable="WANDB_BASE_URL",
        ),
    ] = None
    wandb_dir: Annotated[
        str | None,
        _wandb("Folder of W&B's own files (default: the run directory)", holds="folder"),
    ] = None
    wandb_run_id: Annotated[
        _RunId | None,
        _wandb("Id of the run at W&B; a run that is there goes on (default: a new id)"),
    ] = None
    wandb_always_use_train_step: Annotated[
        bool,
        _wandb("Count optimizer steps on the axis of rollouts and evaluations, not iterations"),
    ] = False

    use_mlflow: Annotated[
        bool, _flag("Send metrics to MLflow as well (in the clone, pip install '.[mlflow]')")
    ] = False
    mlflow_tracking_uri: Annotated[
        _Word | None,
        _mlflow(
            "Address of the MLflow server or store, without a user or password, which are read "
            "from the environment (default: MLFLOW_TRACKING_URI, or MLflow's own)",
            holds="uri",
            variable="MLFLOW_TRACKING_URI",
        ),
    ] = None
    mlflow_experiment_name: Annotated[
        _Word | None,
        _mlflow(
            "Experiment of the run, made if it is not there (default: MLFLOW_EXPERIMENT_NAME, or "
            "Default)"
        ),
    ] = None
    mlflow_run_name: Annotated[
        _Word | None, _mlflow("Name of the run at MLflow (default: the run's id)")
    ] = None

    use_swanlab: Annotated[
        bool, _flag("Send metrics to SwanLab as well (in the clone, pip install '.[swanlab]')")
    ] = False
    swanlab_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        _swanlab(
            "What becomes of metrics: online sends them, offline keeps them in files for `swanlab "
            "sync`, disabled does nothing (default: SWANLAB_MODE, or online)"
        ),
    ] = None
    swanlab_project: Annotated[
        _Word | None, _swanlab("Project of the run (default: what SwanLab takes without one)")
    ] = None
    swanlab_workspace: Annotated[
        _Word | None,
        _swanlab("User or organization that the run belongs to (default: that of the key)"),
    ] = None
    swanlab_experiment_name: Annotated[
        _Word | None, _swanlab("Name of the run at SwanLab (default: the run's id)")
    ] = None
    swanlab_key: Annotated[
        _Word | None,
        _swanlab(
            "Key of the account; it is written nowhere, so a continued run wants it again, but "
            "other users of the host may see a command line (default: SWANLAB_API_KEY, or whoever "
            "is logged in)",
            secret=True,
            variable="SWANLAB_API_KEY",
        ),
    ] = None
    swanlab_host: Annotated[
        _Word | None,
        _swanlab(
            "Address of the server (default: SWANLAB_API_HOST, or SwanLab's own)",
            holds="address",
            variable="SWANLAB_API_HOST",
        ),
    ] = None
