"""What a shell has to be told before the line that `agentrl explain-flags` prints: the variables
that are unknown in it, as commands that set them."""

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.config.launch_script import LaunchScript
from agentrl.config.shell_variables import OF_THE_SHELL

__all__ = ["to_set"]


def to_set(script: LaunchScript, needs: Iterable[str], secrets: Iterable[str]) -> Iterator[str]:
    """A command for each file that the script sources for a variable, then for each variable that
    has to be given. `needs`: the variables, lists as `NAME[@]`; `secrets`: those of values that are
    not shown."""
    names = [n for n in dict.fromkeys(needs) if n not in OF_THE_SHELL]
    sourced: dict[Path, list[str]] = {}
    given = []
    for name in names:
        bare = name.partition("[")[0]
        place = script.set_in.get(bare)
        if place is not None and place != script.path:
            sourced.setdefault(place, []).append(bare)
        elif place is not None:
            given.append((name, f"{script.path.name} sets it"))
        elif bare not in os.environ:
            given.append((name, "comes from outside of the script"))
    given += [(name, "is a secret") for name in secrets if name not in names]
    for path, bares in sourced.items():
        yield f"source {shlex.quote(str(path.absolute()))}  # sets {', '.join(bares)}"
    for name, why in given:
        bare, is_list, _ = name.partition("[")
        yield (f"{bare}=( ... )" if is_list else f"export {bare}=...") + f"  # {why}"
