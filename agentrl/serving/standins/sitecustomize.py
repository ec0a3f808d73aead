"""Stand-ins for packages that SGLang imports but never calls on a CPU host.

Python runs this file at start in processes that have its folder on PYTHONPATH; the launcher gives
it to engine processes only, and only on CPU hosts.

triton       SGLang's kernel modules decorate functions with it when they are imported.
torchvision  SGLang's multimodal configurations import it; no CPU build is on the package index.

A package that is installed is never replaced: the finder stands last, behind all real ones. Only
importing works; a kernel launch would do nothing, which is why `cpu_platform` reports no Triton.
Standard library only: torch must not be imported this early.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

VERSIONS = {"triton": "3.0.0", "torchvision": "0.28.0"}
#: Where real Triton raises on a host without a device; callers catch it and take the CPU's path.
NO_DRIVER = ("triton.runtime.driver", "active")


class StandIn(ModuleType):
    """One object for all that importing code does with a name it never uses for real.

    It is a module and a package, has every public attribute, can be subclassed (and then vanishes
    from the bases), decorates without a trace, is an empty collection and matches no isinstance.
    """

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if (self.__name__, name) == NO_DRIVER:
            raise RuntimeError("no Triton driver: this triton is a stand-in")
        if name.endswith("Error") or name == "OutOfResources":
            value = type(name, (Exception,), {})
        else:
            value = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        bare_decorator = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if bare_decorator else self

    def __mro_entries__(self, bases):
        return ()

    def __instancecheck__(self, instance):
        return False

    def __subclasscheck__(self, subclass):
        return False

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


class StandInFinder:
    """Finds every module below the packages of `VERSIONS`."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in VERSIONS:
            return None
        return importlib.machinery.ModuleSpec(name, StandInFinder, is_package=True)

    @staticmethod
    def create_module(spec):
        return StandIn(spec.name)

    @staticmethod
    def exec_module(module):
        if module.__name__ in VERSIONS:
            module.__version__ = VERSIONS[module.__name__]
        if module.__name__ == "triton":
            # The two helpers that host code calls as ordinary arithmetic.
            module.cdiv = lambda number, divisor: -(-number // divisor)
            module.next_power_of_2 = lambda number: 1 << max(number - 1, 0).bit_length()


def run_next_sitecustomize():
    """This file hides any other sitecustomize further down the path: run that one as well."""
    here = Path(__file__).resolve().parent
    rest = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.append(StandInFinder)
run_next_sitecustomize()
