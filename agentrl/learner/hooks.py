"""Functions of the user's that ranks of the learner call, in slime's signatures.

    process groups -> INIT -> models are built
    a lease -> SAMPLE_FILTER -> CONVERT, by the source rank -> plan -> [BEFORE_LOG_PROB -> pass]
            -> advantages -> DATA_POSTPROCESS -> [BEFORE_TRAIN_STEP -> passes -> optimizer step]
    a push is written to files -> AFTER_WRITE, by the rank that wrote them -> engines read them

All ranks call any other function at the same place, each with what it holds itself. What it raises
on one rank ends all of them, as a HookError that names flag and line: no rank is left waiting for
another. One that does not return ends them too, at a deadline (`hook_watch`). A function that
speaks to other ranks by itself must do so on all of them. `args` has the flags of the run.

Another hook is a line of `KINDS`, and a `call` at its place.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.errors import HookError
from agentrl.learner.collective_errors import together
from agentrl.learner.hook_watch import HookWatch
from agentrl.user_code import Kind, Signature, hook, load, place_in
from agentrl.user_traceback import place_of, words_of

__all__ = [
    "AFTER_WRITE",
    "BEFORE_LOG_PROB",
    "BEFORE_TRAIN_STEP",
    "CONVERT",
    "DATA_POSTPROCESS",
    "INIT",
    "KINDS",
    "SAMPLE_FILTER",
    "LearnerHooks",
]

logger = logging.getLogger(__name__)

Gather = Callable[[Any], list[Any]]

INIT = "custom_megatron_init_path"
BEFORE_LOG_PROB = "custom_megatron_before_log_prob_hook_path"
BEFORE_TRAIN_STEP = "custom_megatron_before_train_step_hook_path"
DATA_POSTPROCESS = "rollout_data_postprocess_path"
SAMPLE_FILTER = "rollout_sample_filter_path"
CONVERT = "custom_convert_samples_to_train_data_path"
AFTER_WRITE = "custom_update_weight_post_write_path"


def _kind(field: str, name: str, *parameters: str) -> Kind[Callable[..., Any]]:
    return hook(
        f"{name}({', '.join(parameters)})",
        [Signature(parameters, is_slimes=True)],
        group="agentrl.learner_hooks",
        noun="learner hook",
        flag=f"--{field.replace('_', '-')}",
        builtin={},
    )


_STEP = ("rollout_id", "step_id", "model", "optimizer", "opt_param_scheduler")
#: By the field of the flag.
KINDS: Mapping[str, Kind[Callable[..., Any]]] = {
    INIT: _kind(INIT, "init", "args"),
    BEFORE_LOG_PROB: _kind(BEFORE_LOG_PROB, "before", "args", "model", "store_prefix"),
    BEFORE_TRAIN_STEP: _kind(BEFORE_TRAIN_STEP, "before", "args", *_STEP),
    DATA_POSTPROCESS: _kind(DATA_POSTPROCESS, "process", "args", "rollout_id", "rollout_data"),
    SAMPLE_FILTER: _kind(SAMPLE_FILTER, "select", "args", "groups"),
    CONVERT: _kind(CONVERT, "convert", "args", "samples"),
    AFTER_WRITE: _kind(AFTER_WRITE, "show", "args", "version_dir", "rollout_engines"),
}


class LearnerHooks:
    """Those that the flags of a run name. `iteration` (from 1) and `step` of it (from 0): where the
    learner stands, for functions that are told. `watch` looks at how long they take.

    Raises ConfigError for one that is not there, or has another signature.
    """

    def __init__(self, cfg: RunConfig, watch: HookWatch | None = None) -> None:
        self.iteration = self.step = 0
        self._watch = watch or HookWatch()
        self._args = Args(cfg)
        self._noted: set[str] = set()
        self._named = {
            field: place
            for field in KINDS
            if is_read(cfg, field) and (place := getattr(cfg, field)) is not None
        }
        self._functions = {field: load(KINDS[field], self._named[field]) for field in self._named}

    def __contains__(self, field: str) -> bool:
        """Whether the run names one for that flag."""
        return field in self._functions

    def said(self, field: str) -> str:
        """Flag and value, as messages name a hook."""
        return f"{KINDS[field].flag} {self._named[field]}"

    def fault(self, field: str, text: str) -> HookError:
        """What is wrong with what the function of that flag left."""
        return HookError(f"{self.said(field)}: {text}: {place_in(self._functions[field])}")

    def call(
        self,
        field: str,
        all_gather: Gather,
        *given: Any,
        read: Callable[[], Any] = lambda: None,
    ) -> list[Any]:
        """Call the function of that flag with `args` and what is `given`; nothing where there is
        none. Collective. Returns what `read` then returned on each rank, as builtins. Raises
        HookError, on all ranks, for what either of them raises on one."""
        if field not in self:
            return []
        return together(lambda: self._attempted(field, given, lambda answer: read()), all_gather)

    def call_here(
        self, field: str, *given: Any, read: Callable[[Any], Any] = lambda answer: None
    ) -> Any:
        """As `call`, on this rank alone: what it raises here, other ranks are not told of. Returns
        what `read` makes of the answer; None where there is no such function."""
        return self._attempted(field, given, read) if field in self else None

    def note(self, text: str) -> None:
        """Say it in the log, once."""
        if text not in self._noted:
            self._noted.add(text)
            logger.info("%s", text)

    def _attempted(self, field: str, given: Sequence[Any], read: Callable[[Any], Any]) -> Any:
        try:
            with self._watch.call(self.said(field)):
                answer = self._functions[field](self._args, *given)
            return read(answer)
        except HookError as error:
            logger.error("%s", error)  # others may be waiting within the function
            raise
        except (Exception, SystemExit) as error:
            told = self._raised(field, error)
            logger.error("%s", told)
            raise told from error

    def _raised(self, field: str, error: BaseException) -> HookError:
        place = "" if place_of(error) else f": {place_in(self._functions[field])}"
        return HookError(f"{self.said(field)}: {words_of(error)}{place}")
