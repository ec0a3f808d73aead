"""docs/objectives.md says where objectives differ from their papers, as their classes do."""

from pathlib import Path

from agentrl.algorithms.gspo import Gspo
from scripts.deviations import PAGE, page

ROOT = Path(__file__).parents[2]


def test_the_table_of_deviations_is_what_the_classes_say() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m scripts.deviations writes it"
    assert f"| `gspo` | {Gspo.deviations.partition('; ')[0]}; " in text
    table = text.partition("<!-- deviations -->")[2].partition("<!-- end of deviations -->")[0]
    assert "`opob`" in table
    assert "`grpo`" not in table


def test_no_docstring_of_an_objective_tells_of_deviations_that_the_page_lacks() -> None:
    told = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "agentrl" / "algorithms").rglob("*.py"))
        if "Deviation:" in path.read_text() or "Deviations:" in path.read_text()
    ]
    assert told == [], "say it in `deviations` of the class"
