"""CONTRIBUTING's recipes whose addition stands beside what is there already: each is made in a copy
of the repository by the edits that its words ask for, and no other file has to change."""

from pathlib import Path

import pytest

from tests.recipes.copies import QUIETLY, Edits, changed, clone, commit, edit, git, run

pytestmark = pytest.mark.timeout(1800)

#: The flag, what reads it, and another value of it.
FLAG: Edits = {
    "agentrl/config/flags/logging.py": [
        (
            "import ACTS, ENGINES, FREE, POLICY, TRAINS, flag",
            "import ACTS, ENGINES, FREE, LEARNER, POLICY, TRAINS, Count, flag",
        ),
        (
            """
    custom_rollout_log_function_path: Annotated[
""",
            """
    ref_log_interval: Annotated[
        Count | None,
        flag(
            "Log every so many iterations that there is a reference",
            group="tracking",
            on_resume=FREE,
            modes=POLICY,
            halves=LEARNER,
            needs="reference",
            reaches_weights=False,
        ),
    ] = None
    custom_rollout_log_function_path: Annotated[
""",
        ),
    ],
    "tests/unit/flag_values.py": [
        ('    "run_id": "mine",', '    "ref_log_interval": "3",\n    "run_id": "mine",')
    ],
    "agentrl/learner/loop.py": [
        (
            "        interval = self._cfg.ref_update_interval\n",
            """        every = self._cfg.ref_log_interval
        if every is not None and iteration % every == 0:
            logger.info("iteration %d has a reference", iteration)
        interval = self._cfg.ref_update_interval
""",
        )
    ],
}
TABLE = "tests/unit/flag_matrix.tsv"
HAS_FLAG = """
import pytest
from agentrl.config.command_line import help_page
from agentrl.config.resolve import parse
from agentrl.config.toml import dump_config
from agentrl.errors import ConfigError
given = ["--ref-log-interval", "3", "--use-kl-loss"]
config = parse(given, "train_async").config
assert config.ref_log_interval == 3 and "ref_log_interval = 3" in dump_config(config)
assert "--ref-log-interval INT" in help_page(["--help"], "train_async")
for refused in (given[:2], [*given, "--eval-only"], ["--ref-log-interval", "0", *given[2:]]):
    with pytest.raises(ConfigError, match="--ref-log-interval"):
        parse(refused, "train_async")
"""
READS = "tests/unit/test_flag_reads.py"
IS_READ = f"{READS}::test_what_is_said_to_be_read_reaches_a_process[ref_log_interval-policy]"


def test_a_flag_is_one_edit_beside_what_reads_it(sound: Path, tmp_path: Path) -> None:
    copy = clone(sound, tmp_path)
    for path, edits in FLAG.items():
        if path == "agentrl/learner/loop.py":
            with pytest.raises(AssertionError, match="ref_log_interval"):  # nothing reads it yet
                run(copy, "-m", "pytest", *QUIETLY, IS_READ)
        edit(copy, path, edits)
    run(copy, "-m", "tests.unit.flag_matrix", "--write")
    commit(copy, "a flag")
    assert changed(copy) == sorted([*FLAG, TABLE])
    rows = lines_of_diff(copy, TABLE)
    assert rows
    assert all(row.startswith("+--ref-log-interval") for row in rows), rows
    run(copy, "-c", HAS_FLAG)
    unread = f"{READS}::test_what_is_said_to_be_unread_reaches_none"
    run(copy, "-m", "pytest", *QUIETLY, IS_READ, unread)


#: The metric, and where it is known.
METRIC: Edits = {
    "agentrl/telemetry/metrics.py": [
        (
            """    Metric("rollout/num_groups", "groups", "Groups of the rollout batch"),
""",
            """    Metric("rollout/num_groups", "groups", "Groups of the rollout batch"),
    Metric("rollout/num_conversations", "trajectories", "Trajectories of the rollout batch"),
""",
        )
    ],
    "agentrl/learner/metrics.py": [
        (
            """    metrics |= {"num_groups": len(groups), "num_episodes": num_episodes}
""",
            """    metrics |= {"num_groups": len(groups), "num_episodes": num_episodes}
    metrics["num_conversations"] = len(rows)
""",
        )
    ],
}
NAMES = "tests/integration/metric_names.json"
HAVE_NAMES = "tests/integration/test_learner_metric_names.py"


def test_a_metric_is_one_edit_beside_what_reports_it(sound: Path, tmp_path: Path) -> None:
    copy = clone(sound, tmp_path)
    for path in reversed(METRIC):
        edit(copy, path, METRIC[path])
        if path == "agentrl/learner/metrics.py":
            with pytest.raises(AssertionError, match="num_conversations"):  # no run had it
                run(copy, "-m", "pytest", *QUIETLY, HAVE_NAMES)
            run(copy, "-m", "tests.integration.test_learner_metric_names")
            with pytest.raises(AssertionError, match="num_conversations"):  # nobody declares it
                run(copy, "-m", "pytest", *QUIETLY, f"{HAVE_NAMES}::{IS_DECLARED}")
    commit(copy, "a metric")
    assert changed(copy) == sorted([*METRIC, NAMES])
    assert {line.strip('+ ,"') for line in lines_of_diff(copy, NAMES)} == {
        "rollout/num_conversations"
    }
    run(copy, "-m", "pytest", *QUIETLY, HAVE_NAMES)


IS_DECLARED = "test_every_metric_of_a_short_run_is_declared"
#: The message of a learner, what the buffer does about it, and its line in the page.
MESSAGE: Edits = {
    "agentrl/wire/messages.py": [
        ("                   EvalWeightsSaved\n", "                   EvalWeightsSaved, Remark\n"),
        (
            """

class EvalWeightsSaved(""",
            """

class Remark(_FromLearner, frozen=True, tag="remark"):
    \"\"\"Something that a person should read.\"\"\"

    text: str


class EvalWeightsSaved(""",
        ),
        ("PushDone | EvalWeightsSaved | Retire", "PushDone | EvalWeightsSaved | Remark | Retire"),
    ],
    "docs/design.md": [
        ("| `EvalWeightsSaved` |", "| `Remark` | learner | to be read |\n| `EvalWeightsSaved` |")
    ],
    "agentrl/wire/frames.py": [("PROTOCOL_VERSION = 4", "PROTOCOL_VERSION = 5")],
    "agentrl/buffer/core.py": [
        ("    MayPush,\n", "    MayPush,\n    Remark,\n"),
        (
            "            case Retire() as message:\n",
            """            case Remark(text):
                self.state.notify("remark", text=text)
            case Retire() as message:
""",
        ),
    ],
}
#: On a bench, as its recipe says.
IS_TAKEN = """
from agentrl.wire.messages import Refused, Remark
from tests.unit.buffer_bench import Bench
bench = Bench()
learner = bench.join("learner-0", "learner")
bench.say(learner, Remark("look"))
refused = [*bench.take(learner, Refused)]
assert refused == [], refused
assert ("remark", {"text": "look"}) in bench.events
"""


def test_a_message_is_one_edit_beside_what_takes_it(sound: Path, tmp_path: Path) -> None:
    copy = clone(sound, tmp_path)
    for path, edits in MESSAGE.items():
        if path == "agentrl/buffer/core.py":
            with pytest.raises(AssertionError, match="the buffer has no use for a Remark"):
                run(copy, "-c", IS_TAKEN)
        edit(copy, path, edits)
    commit(copy, "a message")
    assert changed(copy) == sorted(MESSAGE)
    run(copy, "-c", IS_TAKEN)
    listed = ("tests/unit/test_docs_truth.py::test_the_design_lists_every_message", DRAWN)
    run(copy, "-m", "pytest", *QUIETLY, *listed)


DRAWN = "tests/unit/test_wire_messages.py::test_the_drawing_has_each_message_at_its_sender"


def lines_of_diff(copy: Path, path: str) -> list[str]:
    """Lines that the last commit adds to, and takes from, a file."""
    diff = git(copy, "show", "--unified=0", "--format=", "HEAD", "--", path).splitlines()
    return [line for line in diff[4:] if not line.startswith("@@")]
