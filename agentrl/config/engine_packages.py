"""Whether the engines that a run starts on this host can be had: SGLang and its router are there.

`pip install .` brings no SGLang: its metadata asks for CUDA packages that a host without a GPU does
not want. Nothing is imported to find out. On a cluster engines are on other nodes, which are asked
once they are known.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_engine_packages"]


def check_engine_packages(config: RunConfig) -> None:
    """Raises EnvironmentSetupError naming what is not installed."""
    if config.ray_address is not None:
        return
    lacking = [name for name in _wanted(config) if find_spec(name) is None]
    if lacking:
        raise EnvironmentSetupError(
            f"this Python lacks {' and '.join(lacking)}, and a run starts engines with it: `make "
            "setup` in a clone of agentrl (without a GPU), or `pip install '.[gpu]'` on a GPU host"
        )


def _wanted(config: RunConfig) -> Iterator[str]:
    if config.started_engines:
        yield "sglang"
    if config.engine_groups:
        yield "sglang_router"
