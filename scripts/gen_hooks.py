"""Write the table of docs/hooks.md from the table of hooks (`agentrl/cli/hooks/table.py`).

python -m scripts.gen_hooks            write the page
python -m scripts.gen_hooks --check    exit 1 if it is not what this would write
"""

from pathlib import Path

from agentrl.cli.hooks.table import HOOKS, Hook
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


def page(text: str) -> str:
    """The page with its table written again."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = "| flag | ours | slime's | called | returns |\n| --- | --- | --- | --- | --- |\n"
    return f"{before}{BEGIN}\n{head}{''.join(map(row, HOOKS.values()))}\n{END}{after}"


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
