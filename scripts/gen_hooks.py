"""Write the tables of docs/hooks.md: hooks, from `agentrl/cli/hooks/table.py`, and what stands in
for slime's modules, from `agentrl/slime_modules.py`.

python -m scripts.gen_hooks            write the page
python -m scripts.gen_hooks --check    exit 1 if it is not what this would write
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from agentrl.cli.hooks.table import HOOKS, Hook
from agentrl.slime_modules import MODULES
from agentrl.user_code import Signature
from scripts.pages import write_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hooks.md"
BEGIN, END = "<!-- written by scripts/gen_hooks.py -->\n", "<!-- until here -->\n"


def signatures(hook: Hook, is_slimes: bool) -> list[str]:
    """How a function may be called, ours or slime's."""

    def is_one(signature: Signature) -> bool:
        return signature.is_slimes is is_slimes

    return [f"`{hook.written(each)}`" for each in filter(is_one, hook.its_kind().accepts)]


def row(hook: Hook) -> str:
    """The line of a hook."""
    ours, slimes = (signatures(hook, is_slimes=is_slimes) for is_slimes in (False, True))
    if hook.also:
        (slimes if hook.its_kind().is_slimes else ours).append(hook.also)
    flags = f"`{' '.join(hook.argv)}`"
    cells = [flags, "; ".join(ours) or "-", "; ".join(slimes) or "-", hook.called, hook.returns]
    return f"| {' | '.join(cells)} |\n"


def imports() -> Iterator[str]:
    """A line for each of slime's modules, with the names that are there."""
    for name, place in sorted(MODULES.items()):
        names = ", ".join(f"`{each}`" for each in importlib.import_module(place).__all__)
        yield f"| `{name}` | {names} |\n"


def page(text: str) -> str:
    """The page with its tables written again."""
    before, hooks, between, modules, after = re.split(f"({BEGIN}.*?{END})", text, flags=re.DOTALL)
    head = "| flag | ours | slime's | called | returns |\n| --- | --- | --- | --- | --- |\n"
    hooks = f"{BEGIN}\n{head}{''.join(map(row, HOOKS.values()))}\n{END}"
    head = "| module | what is there |\n| --- | --- |\n"
    modules = f"{BEGIN}\n{head}{''.join(imports())}\n{END}"
    return f"{before}{hooks}{between}{modules}{after}"


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
