"""`show`: an importer of last resort for the modules that functions of slime's users import."""

import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from agentrl.nearest import nearest

__all__ = ["GENERATE_STATE", "MODULES", "show"]

_HERE = "agentrl.envs.slime_stand_in"
#: Of the learner.
_LOSSES = "agentrl.algorithms.slime_stand_in"
GENERATE_STATE = "slime.rollout.sglang_rollout"
#: The modules, and what stands in for each.
MODULES = {
    "slime.utils.types": f"{_HERE}.types",
    "slime.utils.http_utils": f"{_HERE}.http_utils",
    "slime.utils.misc": f"{_HERE}.misc",
    "slime.utils.data": f"{_HERE}.data",
    "slime.utils.processing_utils": f"{_HERE}.processing_utils",
    "slime.utils.async_utils": f"{_HERE}.async_utils",
    "slime.utils.eval_config": f"{_HERE}.eval_config",
    GENERATE_STATE: f"{_HERE}.sglang_rollout",
    "slime.rollout.base_types": f"{_HERE}.rollout_outputs",
    "slime.rollout.data_source": f"{_HERE}.data_source",
    "slime.rollout.filter_hub.base_types": f"{_HERE}.base_types",
    "slime.rollout.rm_hub": f"{_HERE}.rm_hub",
    "slime.rollout.rm_hub.math_dapo_utils": f"{_HERE}.math_dapo_utils",
    "slime.observability.logging_utils": f"{_HERE}.logging_utils",
    "slime.observability.metric_utils": f"{_HERE}.metric_utils",
    "slime.observability.trace_utils": f"{_HERE}.trace_utils",
    "slime.utils.ppo_utils": f"{_LOSSES}.ppo_utils",
    "slime.backends.megatron_utils.loss": f"{_LOSSES}.loss",
    "slime.backends.megatron_utils.cp_utils": f"{_LOSSES}.cp_utils",
    # Where releases before had them.
    "slime.utils.logging_utils": f"{_HERE}.logging_utils",
    "slime.utils.tracking_utils": f"{_HERE}.logging_utils",
    "slime.utils.metric_utils": f"{_HERE}.metric_utils",
}
_PACKAGES = {
    *("slime", "slime.utils", "slime.rollout", "slime.rollout.filter_hub", "slime.rollout.rm_hub"),
    *("slime.observability", "slime.backends", "slime.backends.megatron_utils"),
}
_INSTEAD = (
    "agentrl stands in for what docs/hooks.md lists; install slime, or write what you need of it "
    "into your file"
)
#: What marks `slime` as ours.
_MARK = "__agentrl_stand_in__"


@functools.cache
def show() -> None:
    """From now on `import slime...` finds these in this process, unless slime is installed."""
    sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "slime":
            return None
        if fullname != "slime" and not hasattr(sys.modules.get("slime"), _MARK):
            return None  # a part that an installed slime lacks
        if fullname not in _PACKAGES and fullname not in MODULES:
            raise ModuleNotFoundError(
                f"there is no {fullname} here{nearest(fullname, MODULES)}; slime is not "
                f"installed, and {_INSTEAD}",
                name=fullname,
            )
        return ModuleSpec(fullname, _StandIn(), is_package=fullname in _PACKAGES)


class _StandIn(Loader):
    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _MARK, True)
        if module.__name__ in MODULES:
            source = importlib.import_module(MODULES[module.__name__])
            vars(module).update({name: vars(source)[name] for name in source.__all__})
            vars(module)["__getattr__"] = functools.partial(_lacking, module.__name__)


def _lacking(module: str, name: str) -> Any:
    """Refuse a name that the stand-in of a module has not."""
    if name.startswith("__"):  # the machinery of imports asks for such
        raise AttributeError(name)
    here = [n for n in MODULES if name in importlib.import_module(MODULES[n]).__all__]
    there = f"; it is in {here[0]}" if here else f", and {_INSTEAD}"
    raise ImportError(f"there is no {name} in {module} here{there}", name=module)
