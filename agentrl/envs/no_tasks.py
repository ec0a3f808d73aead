"""`NoTasks`: what a function in slime's signature is given as `data_source` where it may take no
tasks."""

from typing import Any, NoReturn

from agentrl.errors import EnvError

__all__ = ["NoTasks"]


class NoTasks:
    """In the place of slime's source of training data, or of its `get_samples`. It is there, and
    true. Whatever is asked of it raises EnvError with `why`, which says what to do."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __bool__(self) -> bool:
        return True

    def __call__(self, num_samples: int) -> NoReturn:
        raise EnvError(self._why)

    def get_samples(self, num_samples: int) -> NoReturn:
        raise EnvError(self._why)

    def add_samples(self, samples: Any) -> NoReturn:
        raise EnvError(self._why)

    def __len__(self) -> NoReturn:
        raise EnvError(self._why)
