"""Write `docs/layouts.md`: every layout of the learner that is compared with one process, the
families it was compared on, and the worst difference that was measured.

The cases are those of `tests/parity/layout_cases.py`, and what is measured is what the tests of
`tests/parity/test_megatron_ranks.py` assert on; nothing is typed. A case is one model on two or
four real processes.

    python -m scripts.layouts          play all cases and write the page
    python -m scripts.layouts --new    play those of rows and families that the page lacks, and keep
                                       its others
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from tests.parity.layout_cases import (
    CASES,
    WITH_EXPERTS,
    WITH_WHOLE_EXPERTS,
    family_of,
    layout_of,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "layouts.md"
CASES_FILE = "tests/parity/test_megatron_ranks.py"
MEASURING = {
    "weights": "test_many_ranks_take_the_same_steps_as_one",
    "logprobs": "test_the_ranks_of_a_replica_see_the_logprobs_of_one_process",
}
#: Cases of each family on two ranks begin so.
ON_TWO_RANKS = ("tp2", "pp2", "ep2")
#: A measured difference.
NUMBER = r"\d\.\de[+-]\d\d"
#: Cases whose ranks share one start.
TOGETHER = 4

#: Settings in the order and the words of the page; `{}` is the value.
WORDS = {
    "tensor_model_parallel_size": "TP{}",
    "sequence_parallel": "SP",
    "pipeline_model_parallel_size": "PP{}",
    "decoder_first_pipeline_num_layers": "first stage of {} layers",
    "decoder_last_pipeline_num_layers": "last stage of {} layers",
    "account_for_embedding_in_pipeline_split": "embedding as a layer",
    "account_for_loss_in_pipeline_split": "loss as a layer",
    "pipeline_model_parallel_layout": "stages `{}`",
    "num_virtual_stages_per_pipeline_rank": "{} stages on each rank",
    "num_layers_per_virtual_pipeline_stage": "interleaved stages of {} layer",
    "context_parallel_size": "CP{}",
    "expert_model_parallel_size": "EP{}",
    "expert_tensor_parallel_size": "ETP{}",
    "moe_token_dispatcher_type": "{}",
    "make_vocab_size_divisible_by": "vocabulary padded to {}",
    "recompute_granularity": "{} recomputation",
    "recompute_modules": "of {}",
    "recompute_method": "method {}",
    "recompute_num_layers": "{} layer",
    "overlap_grad_reduce": "gradients reduced beside the pass",
    "overlap_param_gather": "weights gathered beside the pass",
}

HEAD = """\
# Layouts

Written by `python -m scripts.layouts`. A layout says how the ranks of the learner share a model
out. Each one below ran on real processes over gloo, in float32, with the tiny members of the
families named: two optimizer steps (AdamW, clipping) over packed micro-batches, of which ranks
have unequal numbers, and a step that is refused on all of them. One process took the same steps.
The worst difference is that of any weight after both steps, and of any log-probability that the
loss reads before each of them. The clipped gradients of the first step are compared element by
element, within 1e-5 of the largest. What one process does is compared with `transformers` in
[models.md](models.md). Models with delta nets are further off, up to 6e-5. In the one such case
that was taken apart, the gradients agreed within 2.4e-7, but one weight of 1,024 of an expert had a
gradient of 5e-6 where the median was 2e-4, and a step of AdamW makes much of the rounding of so
small a gradient ([lab book](lab.md#2026-11-26-context-parallelism-with-delta-nets)).

TP, PP, CP, EP, ETP: ranks that share tensors, the pipeline, the context, the experts, the tensors
of one expert. SP: sequence parallelism. What these leave of the ranks are replicas. Where
activations are recomputed, the one process keeps them.
"""

TAIL = """\
## What there is none of

- Interleaved pipelines take micro-batches in groups of the pipeline's size, and recompute nothing
  of a group in part (`--microbatch-group-size-per-virtual-pipeline-stage` is refused).
- Context-parallel ranks gather keys and values (`--cp-comm-type all_gather`), and share the heads
  of a delta net by all-to-all. The other ways are Transformer Engine's, and are refused.
- Experts and tensor parallelism together need `--sequence-parallel`.
- Experts with biases (`gpt-oss`) are not cut: tensor parallelism needs expert parallelism there.
- One GPU has run the learner of one rank in every family (`tests/gpu`). Ranks of several GPUs have
  not been run: the same layouts go through NCCL there, and Megatron-core is replaced only where it
  is wrong on every device, or slow (`agentrl/learner/megatron/compat.py`).
"""


class Row(NamedTuple):
    """A layout as the page has it. `cases` are what it was measured by."""

    ranks: int
    layout: str
    families: tuple[str, ...]
    cases: tuple[str, ...]


Measured = dict[str, dict[str, float]]


def rows() -> list[Row]:
    """Every layout of the cases, fewest ranks first, then in their order."""
    found: dict[Any, list[str]] = {}
    for case in CASES:
        found.setdefault(layout_of(case), []).append(case)
    made = [
        Row(
            ranks,
            words_of(dict(settings)),
            tuple(sorted({family_of(CASES[case][1]) for case in cases})),
            tuple(cases),
        )
        for (ranks, settings), cases in found.items()
    ]
    return sorted(made, key=lambda row: row.ranks)


def words_of(settings: dict[str, Any]) -> str:
    """A layout in short; without settings every rank is a replica."""
    assert settings.keys() <= WORDS.keys()
    told = [
        text.format(" and ".join(value) if isinstance(value, tuple) else value)
        for name, text in WORDS.items()
        if (value := settings.get(name)) is not None
    ]
    return ", ".join(told).replace("|", r"\|") or "replicas"


def measure(played: Collection[str] = tuple(CASES)) -> Measured:
    """By case what its tests recorded."""
    measured: Measured = {case: {} for case in CASES}
    for cases in _starts(played):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            names = [f"{CASES_FILE}::{t}[{case}]" for t in MEASURING.values() for case in cases]
            options = ["-q", f"--junitxml={report}", "-o", "junit_family=xunit1"]
            command = [sys.executable, "-m", "pytest", *options, *names]
            environment = os.environ | {"AGENTRL_TESTS": "full"}
            subprocess.run(command, check=True, cwd=ROOT, env=environment)
            for test in ElementTree.parse(report).iter("testcase"):
                case = test.attrib["name"].partition("[")[2].rstrip("]")
                for each in test.iter("property"):
                    measured[case][each.attrib["name"]] = float(each.attrib["value"])
    return measured


def measured_before(text: str) -> Measured:
    """By case what a page says of it, as far as its rows have families that would be written now:
    the worst of a row for each of its cases, but what the page says of a family alone."""
    lines = text.splitlines()
    found: Measured = {}
    for row in rows():
        begin = f"| {row.ranks} | {row.layout} | "
        line = next((line for line in lines if line.startswith(begin)), "")
        before = set(re.findall("`([^`]+)`", line.removeprefix(begin)))
        if before and before <= {*row.families}:
            worst = dict(zip(MEASURING, map(float, re.findall(NUMBER, line)), strict=True))
            known = [case for case in row.cases if family_of(CASES[case][1]) in before]
            found |= {case: dict(worst) for case in known}
    for line in lines:
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        for name, cell in zip(ON_TWO_RANKS, cells[1:], strict=False):
            case, number = _on_two_ranks(name, cells[0]), re.match(NUMBER, cell)
            if number and case in found:
                found[case]["weights"] = float(number[0])
    return found


def _on_two_ranks(name: str, family: str) -> str:
    """The case of a family whose ranks share it so: experts that stay whole are shared out too."""
    whole = name == "tp2" and family in WITH_WHOLE_EXPERTS
    return f"tp2-ep2-{family}" if whole else f"{name}-{family}"


def _starts(played: Collection[str]) -> Iterator[list[str]]:
    for size in sorted({ranks for ranks, _, _ in CASES.values()}):
        cases = [case for case, (ranks, _, _) in CASES.items() if ranks == size and case in played]
        for first in range(0, len(cases), TOGETHER):
            yield cases[first : first + TOGETHER]


def page(measured: Measured) -> str:
    """The whole page."""
    lines = [HEAD, "## Layout by layout", ""]
    lines += [
        "| ranks | layout | families | weights | log-probs |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_line(row, measured) for row in rows()]
    lines += ["", "## Family by family", "", "The worst difference of a weight, on two ranks.", ""]
    lines += ["| family | TP2 | PP2 | EP2 | layouts in all |", "| --- | --- | --- | --- | --- |"]
    for family in sorted({name for row in rows() for name in row.families}):
        lines.append(_of_family(family, measured))
    return "\n".join([*lines, "", TAIL])


def _line(row: Row, measured: Measured) -> str:
    names = ", ".join(f"`{name}`" for name in row.families)
    worst = " | ".join(_worst(measured, row.cases, what) for what in MEASURING)
    return f"| {row.ranks} | {row.layout} | {names} | {worst} |"


def _of_family(family: str, measured: Measured) -> str:
    own = [case for case, (_, model, _) in CASES.items() if family_of(model) == family]
    cells = [f"`{family}`"]
    for name in ON_TWO_RANKS:
        case = _on_two_ranks(name, family)
        has = name != "ep2" or family in WITH_EXPERTS
        cell = _worst(measured, [case], "weights") if has else "no experts"
        cells.append(cell + (" with EP2" if case.startswith(f"{name}-ep2") else ""))
    return f"| {' | '.join([*cells, str(len({layout_of(case) for case in own}))])} |"


def _worst(measured: Measured, cases: Sequence[str], what: str) -> str:
    return f"{max(measured[case][what] for case in cases):.1e}"


def without_numbers(text: str) -> str:
    """A page in which no measured number stands: those of two machines are equal."""
    return re.sub(NUMBER, "N", text)


def main() -> int:
    known = measured_before(PAGE.read_text()) if "--new" in sys.argv[1:] else {}
    PAGE.write_text(page(measure(CASES.keys() - known.keys()) | known))
    print(f"{PAGE.relative_to(ROOT)}: {len(rows())} layouts, {len(CASES)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
