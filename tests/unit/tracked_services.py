"""The services that a run can be tracked by: the calls of each one's package, and the stand-in that
plays it."""

from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest

from agentrl.config.run import RunConfig
from tests.tracked import resolved, standing_in

KEY = "0123456789abcdef0123456789abcdef01234567"


class Service(msgspec.Struct, frozen=True):
    """The calls of a package, and how its last one says that a run did not end well."""

    begin: str
    log: str
    finish: str
    failed: dict[str, object]
    key: str = ""


SERVICES = {
    "mlflow": Service("create_run", "log_batch", "set_terminated", {"status": "FAILED"}),
    "swanlab": Service("init", "log", "finish", {"state": "crashed"}, "--swanlab-key"),
    "wandb": Service("init", "log", "finish", {"exit_code": 1}, "--wandb-key"),
}


class Played(msgspec.Struct, frozen=True):
    name: str
    package: ModuleType
    service: Service

    @property
    def config(self) -> RunConfig:
        return resolved(f"--use-{self.name}")


@pytest.fixture(params=SERVICES)
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """The stand-in, where the package would be."""
    with standing_in(request.param, monkeypatch) as package:
        yield Played(request.param, package, SERVICES[request.param])
