"""What a run may not change when it is continued: that on which its stored rows rest.

A flag is fixed where something stored was made under its old value and would be read as if made
under the new one: a group whose episodes are compared with each other, a log-probability that the
learner scores again, a position in the tasks, the state of a checkpoint. All else applies from the
continuation on. Which is which stands at the flag (`FlagFact.on_resume`).
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["refuse_changes"]


def refuse_changes(
    before: RunConfig, now: RunConfig, run: Path, *, save: str | None = None
) -> list[str]:
    """Notes on what may change and deserves a look. Raises ConfigError when `now` contradicts what
    the run in `run` has stored under `before`; all contradictions are named at once. `save`: the
    folder that somebody gave; a script that loads where it saves continues the run by it."""
    changes = list(_changes(("fixed", "may fall"), before, now, run))
    if changes:
        another = "" if save is None else f" with another --save than {save}"
        raise ConfigError(
            "\n".join(changes) + f" leave {'them' if changes[1:] else 'it'} out, or start a new "
            f"run{another} (--load takes the weights along)"
        )
    return [change.rstrip(";") for change in _changes(("noted",), before, now, run)]


def _changes(kinds: Collection[str], before: RunConfig, now: RunConfig, run: Path) -> Iterator[str]:
    defaults = {"save": str(run / "recovery"), "min_group_size": before.n_samples_per_prompt}
    for name, field in own_fields().items():
        rule = field.fact.on_resume
        old, new = (_value(config, name, defaults.get(name)) for config in (before, now))
        if rule.kind not in kinds or old == new or (rule.kind == "may fall" and new < old):
            continue
        begun = "without it" if old is None or old == {} else f"with {old}"
        yield f"{field.flag} {_said(new)}, but {run} was begun {begun} and {rule.why};"


def _value(config: RunConfig, name: str, default: Any) -> Any:
    value = getattr(config, name)
    return default if value is None else value


def _said(value: Any) -> str:
    return "is not given" if value is None else str(value)
