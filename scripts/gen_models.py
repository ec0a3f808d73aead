"""Write the tables of docs/models.md: the families that ship, and what was measured of each.

    python -m scripts.gen_models            write the page
    python -m scripts.gen_models --check    exit 1 if it is not what this would write

Families are those of `agentrl/models`; the numbers are of `benchmarks/results/families.json`
(`make bench NAME=families`).
"""

import json

from agentrl.models import Family
from agentrl.models.registry import families
from benchmarks import RESULTS, ROOT
from scripts.pages import rows, write_page

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- written by scripts/gen_models.py -->\n", "<!-- until here -->\n"


def shipped(name: str, family: Family) -> list[str]:
    """A family's row in the table of names."""
    speaks = " or ".join(f"`{each}`" for each in family.chat_formats)
    return [f"`{name}`", ", ".join(f"`{each}`" for each in family.architectures), speaks]


def measured(name: str, found: dict[str, float]) -> list[str]:
    """A family's row in the table of numbers."""

    def said(what: str, none: str = "", some: str = "") -> str:
        value = found.get(f"{what}/{name}")
        if value is None:
            return "not measured"
        if not none:
            return f"{value:.1e}"
        return some.format(value) if value else none

    return [
        f"`{name}`",
        said("learner"),
        said("unequal", "bit-equal", "{:.0f} tensors differ"),
        said("engine"),
        said("tokens", "all equal", "{:.0f} differ"),
        said("iteration"),
    ]


def tables() -> str:
    """Both tables, with a line that says where the numbers are from."""
    result = json.loads((RESULTS / "families.json").read_text())
    found = {row["metric"]: row["value"] for row in result["rows"]}
    names = [shipped(name, family) for name, family in families().items()]
    numbers = [measured(name, found) for name in families()]
    head = ["family", "architecture in `config.json`", "`--chat-format` of its members"]
    columns = ["family", "learner", "round trip", "engine", "greedy tokens", "one iteration"]
    lines = "\n".join
    return (
        f"{lines(rows(head, names))}\n\n"
        f"Measured on small random members in float32 ({result['machine']}; commit "
        f"{result['commit']}; `make bench NAME=families`):\n\n{lines(rows(columns, numbers))}\n"
    )


def page(text: str) -> str:
    """The page with its tables written again."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
