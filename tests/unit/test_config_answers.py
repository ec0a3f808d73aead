"""The table of answers: each row says what the parser does, names what exists, and has a test."""

import re

import pytest

from agentrl.config import answers
from agentrl.config.agreements import RULES
from agentrl.config.answers import FlagAnswer
from agentrl.config.command_line import known_flags
from agentrl.config.explained import explain
from agentrl.config.fields import own_fields
from agentrl.config.launch_script import Argument
from agentrl.config.megatron import MegatronSettings
from tests.unit.answers_ground import BASE, FULLY_ASYNC, IMITATION, ROOT, base, parsed, refusal

pytestmark = pytest.mark.slow

OWN = {field.flag for field in own_fields().values()}
#: Names of Megatron that are read: by the learner, or under agentrl's own flag.
HONOURED = {*MegatronSettings.__struct_fields__, *own_fields()}
COLOCATED = (*BASE, "--colocate", "--async-buffer-size", "0", "--max-staleness", "0")
#: What a rule wants, to say that it is already so, and the run in which it does.
SO = {
    "batch": (["8"], BASE),
    "ckpt_step": (["10"], BASE),
    "critic_ranks": (["1"], BASE),
    "evaluation": (["slime.rollout.sglang_rollout.generate_rollout"], BASE),
    "fully_async": ([], BASE),
    "loss_mask": (["qwen"], BASE),
    "offload": ([], COLOCATED),
    "rollout": ([FULLY_ASYNC], BASE),
    "supervised": ([], IMITATION),
    "train_only": ([], IMITATION),
}


def given(name: str, row: FlagAnswer) -> list[str]:
    """The flag as somebody gives it; of a noted one, so that it is already so."""
    if row.rule:
        return [name, *SO[row.rule][0]]
    if row.takes == 0 and row.accepts == ("false",):
        return [name.replace("--", "--no-", 1)]
    return [name, *(row.accepts[:1] or ("1",))] if row.takes else [name]


def is_named(line: str, name: str) -> bool:
    return name in re.split(r"[\s:;,]", line)


@pytest.mark.parametrize("name", sorted(answers.rows()))
def test_a_row_says_what_the_parser_does(name: str) -> None:
    row = answers.rows()[name]
    argv = given(name, row)
    if row.state == "works":
        assert name in known_flags()
        key = name.removeprefix("--").replace("-", "_")
        assert name not in answers.rows("megatron") or key in HONOURED
    elif row.renamed:
        assert row.renamed.split()[0] in known_flags()
    elif row.state == "noted":
        run = SO[row.rule][1] if row.rule else BASE
        resolved = parsed(argv, run)
        new = [line for line in resolved.notes if line not in base(run).notes]
        assert len([line for line in new if is_named(line, argv[0])]) == 1
        assert resolved.config == base(run).config
    else:
        words = refusal(argv)
        needed = answers.missing().get(row.waits)
        assert is_named(words, name)
        assert "did you mean" not in words
        assert (row.says if needed is None else f"{needed.what}; {needed.instead}") in words


#: What nobody does who has it "already so".
IGNORED = re.compile(r"not used|not needed|ignored|whatever|no effect|slower")


@pytest.mark.parametrize(
    "name", [n for n, row in answers.rows().items() if row.state == "noted" and not row.renamed]
)
def test_what_is_not_used_is_noted_and_never_called_already_so(name: str) -> None:
    row = answers.rows()[name]
    argv = given(name, row)
    run = SO[row.rule][1] if row.rule else BASE
    values = row.accepts if row.takes and not row.rule else (" ".join(argv[1:]),)
    for value in values:
        words = [*run, argv[0], *value.split()]
        found = explain([Argument(word) for word in words])[-1]
        is_unused = row.lead != "already so" or value in row.unused
        assert found.answer == ("noted" if is_unused else "already so"), value
        assert (IGNORED.search(found.says) is not None) == is_unused, found.says


@pytest.mark.parametrize(
    ("flag", "lead"),
    [
        ("--moe-grouped-gemm", "not used: experts are computed one after another, which is slower"),
        ("--moe-permute-fusion", "not used: tokens are put in the order of experts without"),
        ("--qwen-gdn-backend fla", "not used: gated delta nets are computed by plain torch"),
        ("--moe-enable-deepep", "not used: tokens travel between ranks by all-to-all"),
        ("--moe-token-drop-policy probs", "already so: no token is dropped"),
        ("--log-probs-chunk-size 1024", "not needed: logits are scored block by block"),
        ("--critic-save x", "not needed: every checkpoint of --save has the critic"),
    ],
)
def test_the_line_of_an_accepted_flag_says_whether_it_is_so(flag: str, lead: str) -> None:
    assert lead in "\n".join(parsed(flag.split()).notes)


def test_a_row_is_complete() -> None:
    for name, row in answers.rows().items():
        assert row.state == "works" or row.says or row.waits, name
        assert not row.rule or row.rule in RULES, name
        assert {row.waits, *row.refuses.values()} <= {"", *answers.missing()}, name
        assert row.state != "noted" or row.says, name


def recorded_flags() -> dict[str, tuple[str, str]]:
    """Slime's own flags: how many words follow each, and what holds without it."""
    lines = (ROOT / "tests" / "fixtures" / "slime_flags.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {name: (takes, default) for name, takes, default in rows}


def test_every_flag_of_slime_has_a_row() -> None:
    recorded = recorded_flags()
    assert len(recorded) == 223
    slime = {**answers.rows("megatron"), **answers.rows("slime")}
    told = {name: str(slime[name].takes) for name in recorded if name in slime}
    assert told == {name: takes for name, (takes, _) in recorded.items()}


def test_a_default_that_is_not_slimes_is_in_the_table_and_told_at_start() -> None:
    fields = {field.flag: field for field in own_fields().values()}
    unsaid = {remark.field for remark in answers.remarks() if remark.when == "unsaid"}
    untold = []
    for name, (_, theirs) in recorded_flags().items():
        ours = fields[name].default if name in fields else None
        is_same = theirs in (repr(ours), repr(f"{ours}")) or is_number(ours, theirs)
        if name not in fields or ours in ([], {}) or is_same:
            continue
        # The estimator of the KL is told by every run that measures it, whoever began it. Neither
        # offload is on under --colocate, as here. The class of slime's default gives rows, as here,
        # and its function has engines play them.
        is_told = fields[name].name in unsaid or name in (
            *("--kl-loss-type", "--offload-train", "--offload-rollout", "--data-source-path"),
            "--rollout-function-path",
        )
        if not (is_told and answers.rows()[name].differs):
            untold.append(f"{name}: {ours!r}, and {theirs} in slime")
    assert untold == []


def is_number(ours: object, theirs: str) -> bool:
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return False
    return theirs not in ("None", "True", "False", "required") and float(theirs) == ours


def test_every_setting_of_megatron_that_the_learner_reads_has_a_row() -> None:
    read = {f"--{name.replace('_', '-')}" for name in MegatronSettings.__struct_fields__}
    assert read - answers.rows().keys() == set()


def test_advice_names_only_flags_that_exist() -> None:
    passed = {*answers.rows("slime"), *answers.rows("megatron")}
    known = {*known_flags(), *passed, *(flag.replace("--", "--no-", 1) for flag in known_flags())}
    texts = [(needed.what + needed.instead, name) for name, needed in answers.missing().items()]
    for name, row in answers.rows().items():
        texts += [(text, name) for text in (row.says, row.otherwise, row.differs)]
    texts += [(remark.text, remark.field) for remark in answers.remarks()]
    for text, name in texts:
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
            assert flag in known, f"{name}: {flag}"


def test_no_row_hides_a_flag_of_agentrl() -> None:
    for name, row in answers.rows().items():
        assert row.state == "works" or name not in OWN, name


def test_a_setting_of_slimes_own_sglang_is_answered_with_what_to_use() -> None:
    said = refusal(["--sglang-custom-pull-weights-pre-read-hook", "mine.refresh"])
    assert said.startswith(
        "--sglang-custom-pull-weights-pre-read-hook: an engine calls no function"
    )
    assert "--custom-update-weight-post-write-path" in said


def test_what_waits_for_the_same_thing_is_told_in_one_line() -> None:
    argv = ["--sglang-moe-dp-size", "2", "--sglang-dwdp-size", "2"]
    (line,) = refusal(argv).splitlines()
    assert line.startswith("--sglang-moe-dp-size 2, --sglang-dwdp-size 2: these wait for experts ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--use-dynamic-batch-size 3", "--use-dynamic-batch-size takes no value; '3' is too much"),
        ("--micro-batch-size", "--micro-batch-size takes one value, not 0"),
        ("--no-balance-data", "--no-balance-data: it cannot be otherwise"),
        ("--eval-min-new-tokens 8", "--eval-min-new-tokens 8: "),
        ("--max_lag=3", "--max_lag: agentrl calls it --max-staleness"),
    ],
)
def test_a_flag_of_the_table_is_refused_as_it_was_written(argv: str, said: str) -> None:
    assert said in refusal(argv.split())


def test_numbers_are_the_same_in_every_spelling() -> None:
    assert parsed(["--eval-min-new-tokens", "00"]).config == base().config
