"""`--rm-type`: which reward a row is scored by, and that its value is slime's."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.envs.grading.boxed import boxed
from agentrl.envs.grading.cell import RuleError
from agentrl.envs.grading.latex import plain_text
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.named import load_reward, load_shipped
from agentrl.envs.registry import load_env
from agentrl.envs.reward_types import reward_type, scorers
from agentrl.envs.rewards import base
from agentrl.errors import ConfigError, EnvError
from agentrl.shipped import REWARDS
from tests.slices import of_the_day

pytestmark = pytest.mark.anyio

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
ANSWERS = Path(__file__).parents[1] / "fixtures/reward_answers.jsonl"
HEAD, *CASES = map(json.loads, ANSWERS.read_text().splitlines())


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"input": "q", "label": "5"}\n')


async def played(flags: str, row: dict[str, Any], text: str, reasoning: str = "") -> Step:
    """The step that ends an episode of these flags."""
    base = f"--hf-checkpoint {MODEL} --prompt-data rows.jsonl --n-samples-per-prompt 4"
    words = f"{base} --rollout-max-response-len 64 --device cpu {flags}".split()
    config = parse(words, "train_async").config
    env = load_env(str(config.env))(**config.env_args)
    await env.reset(seed=0, task={"input": "q", **row})
    return await env.step(AssistantTurn(text, [], None, "stop", 0, reasoning))


async def test_a_reward_that_ships_scores_each_answer() -> None:
    right, wrong = "so \\boxed{\\frac{1}{2}}", "so \\boxed{2}"
    assert (await played("--rm-type math", {"label": "0.5"}, right)).reward == 1.0
    assert (await played("--rm-type math --env tools", {"label": "0.5"}, wrong)).reward == 0.0
    step = await played("--rm-type dapo --reward-key score", {"label": "34"}, "Answer: 3")
    assert (step.reward, step.metrics["reward.acc"]) == (-1.0, 0.0)
    assert (await played("--rm-type boxed_f1", {"label": "a cat"}, "\\boxed{Cat}")).reward == 1.0
    assert (await played("--custom-rm-path math", {"label": "0.5"}, right)).reward == 1.0


async def test_a_thought_is_part_of_the_response() -> None:
    row = {"label": "5"}
    assert (await played("--rm-type deepscaler", row, "\\boxed{5}", "hm")).reward == 1.0
    assert (await played("--rm-type deepscaler", row, "\\boxed{5}")).reward == 0.0
    assert (await played("--rm-type deepscaler", row, "", "so \\boxed{5}")).reward == 0.0


async def test_the_row_comes_before_the_flag_and_ones_own_function_before_both(
    tmp_path: Path,
) -> None:
    row = {"label": "the cat", "metadata": {"rm_type": "f1"}}
    assert (await played("--rm-type math", row, "Cat.")).reward == 1.0
    assert (await played("", row, "Cat.")).reward == 1.0
    mine = tmp_path / "mine.py"
    mine.write_text("def half(text, label, task):\n    return 0.5\n")
    assert (await played(f"--rm-type math --custom-rm-path {mine}", row, "Cat.")).reward == 0.5


def test_who_scores_a_row_that_asks_for_none_follows_from_two_flags(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def half(text, label, task):\n    return 0.5\n")
    half = load_reward(f"{mine}:half")
    for reward, rm_type, own, usual in [
        (None, None, None, "exact"),
        (None, "boxed_f1", None, "boxed_f1"),
        ("math", "f1", None, "math"),
        (f"{mine}:half", None, half, "exact"),
        (f"{mine}:half", "f1", half, "f1"),
    ]:
        assert scorers(reward, rm_type) == (own, reward_type(usual))
    with pytest.raises(ConfigError, match="there is no reward 'maths'"):
        scorers(f"{mine}:half", "maths")


@pytest.mark.parametrize("name", sorted(REWARDS.places))
def test_each_that_ships_says_what_it_needs_and_has_its_row(name: str) -> None:
    assert load_shipped(name) in base._FACTS
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    assert f"\n| `{name}` | " in page


@pytest.mark.parametrize("name", ["random", "boxed_random", "nothing"])
async def test_some_need_no_label(name: str) -> None:
    assert (await played(f"--rm-type {name}", {}, "x")).reward in (0.0, 1.0)


@pytest.mark.parametrize("name", ["math", "deepscaler", "f1", "boxed_math"])
async def test_a_row_without_a_label_is_refused_where_one_is_compared(name: str) -> None:
    with pytest.raises(EnvError, match="the task has no 'label'"):
        await played(f"--rm-type {name}", {}, "x")


@pytest.mark.parametrize(
    ("flags", "text", "worth"),
    [
        ("", "Lutetia", 1.0),
        ("--rm-type f1", "It is Paris", 0.5),
        ("--rm-type math", "\\boxed{Lutetia}", 1.0),
        ("--rm-type math", "\\boxed{Rome}", 0.0),
        ("--rm-type deepscaler", "</think> \\boxed{Paris}", 1.0),
        ("--rm-type boxed_f1", "\\boxed{Lutetia}", 1.0),
    ],
)
async def test_any_of_a_list_of_labels_is_right(flags: str, text: str, worth: float) -> None:
    row = {"label": ["Paris", "Lutetia"]}
    assert (await played(flags, row, text)).reward == worth


async def test_dapo_takes_any_of_a_list_of_integers() -> None:
    flags = "--rm-type dapo --reward-key score"
    for text, worth in [("Answer: 4", 1.0), ("Answer: 34", 1.0), ("Answer: 5", -1.0)]:
        assert (await played(flags, {"label": [34, "4"]}, text)).reward == worth
    with pytest.raises(RuleError, match="the label 'x' is no integer"):
        await played(flags, {"label": [34, "x"]}, "Answer: 34")


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ([], "the label 'label' is an empty list: nothing is right"),
        ([["Paris"]], r"the label 'label' lists \['Paris'\]; list texts or numbers, of which any"),
        ([None], "the label 'label' lists None"),
    ],
)
@pytest.mark.parametrize("name", ["exact", "math", "f1", "boxed_dapo"])
async def test_a_list_that_no_text_can_be_in_is_refused(name: str, label: Any, said: str) -> None:
    with pytest.raises(EnvError, match=said):
        await played(f"--rm-type {name} --reward-key score" if "dapo" in name else
                     f"--rm-type {name}", {"label": label}, "x")  # fmt: skip


CHOICES = {"choices": ["red", "blue"]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "`gpqa` finds no right answer in the row: give it a label"),
        ({"label": ""}, "`gpqa` finds no right answer in the row"),
        ({"label": ["A"]}, "`gpqa` finds no right answer in the row"),
        ({"label": 2, "metadata": CHOICES}, "`gpqa` finds no right answer in the row"),
        ({"label": "Z", "metadata": CHOICES}, "the right letter of `gpqa` is Z, and those of the"),
        ({"metadata": CHOICES | {"correct_letter": "c"}}, "letter of `gpqa` is C, .* are A, B"),
        ({"label": "A", "metadata": {"choices": 3}}, "`choices` of the row's metadata is 3"),
    ],
)
async def test_a_choice_of_which_none_can_be_right_is_an_error_of_the_row(
    row: dict[str, Any], said: str
) -> None:
    with pytest.raises(RuleError, match=said):
        await played("--rm-type gpqa", row, "The answer is A.")


@pytest.mark.parametrize(
    "row",
    [
        {"label": "b", "metadata": CHOICES},
        {"label": 1, "metadata": CHOICES},
        {"label": "Blue.", "metadata": CHOICES},
        {"metadata": CHOICES | {"correct_letter": "B"}},
        {"metadata": {"correct_answer": "blue"}},
        {"label": "Y", "metadata": {"valid_letters": ["X", "Y"], "answer_text": "blue"}},
        {"label": "It is blue"},
    ],
)
async def test_a_choice_is_right_however_the_row_says_it(row: dict[str, Any]) -> None:
    letters = row.get("metadata", {}).get("valid_letters", "AB")
    said = f"The answer is {letters[1]}." if "correct_answer" not in row.get("metadata", {}) else ""
    assert (await played("--rm-type gpqa", row, f"{said} It is blue.")).reward == 1.0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--rm-type maths", "there is no reward 'maths'; did you mean math"),
        ("--rm-type zzz", "there is no reward 'zzz'; known: dapo, deepscaler, exact, f1, gpqa"),
        ("--rm-type dapo", "dict of .*'score', 'acc', 'pred'.*: name what is trained with --rewa"),
        ("--rm-type dapo --reward-key f1", "--reward-key f1: the reward dapo is a dict of"),
        ("--rm-type math --reward-key score", "--reward-key score: the reward math is a number"),
        ("--rm-type remote_rm", "asks a model over HTTP: say where with --rm-url"),
        (
            "--env search-r1-local --rm-type math",
            "--rm-type: only --env single-turn, tools and generate",
        ),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_starts(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await played(flags, {"label": "x"}, "x")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [({"rm_type": "mth"}, "metadata asks for rm_type 'mth': .*did you mean math"),
     ({"rm_type": "remote_rm"}, "say where with --rm-url")],
)  # fmt: skip
async def test_a_row_that_asks_for_nothing_known_is_refused(
    metadata: dict[str, str], said: str
) -> None:
    with pytest.raises(EnvError, match=said):
        await played("", {"label": "x", "metadata": metadata}, "x")


#: Labels that slime's `dapo` reads as a float and cuts, and what they are here (docs/rewards.md).
OWN = {"5.9": "no integer", "10000000000000000000001": 1.0}


def test_values_are_slimes() -> None:
    """On the list of `reward_answers.jsonl`, whose first line says how it was recorded;
    `scripts/reward_answers.py` makes it again, and two labels of `dapo` are another test's (`OWN`).
    The rules are called in this process. What slime hangs on is a matter of the process
    (security)."""
    assert len(CASES) > 1600
    compared = [c for c in CASES if "late" not in c and not (is_dapo(c) and c["label"] in OWN)]
    for case in of_the_day(compared, 400):
        kind = reward_type(case["rm_type"])
        name = case["rm_type"].removeprefix("boxed_")
        rule = getattr(importlib.import_module(REWARDS.places[name]), name).__wrapped__
        text = boxed(case["text"]) or "" if kind.is_boxed else case["text"]
        worth = rule(text, case["label"], {"metadata": case.get("metadata")})
        assert worth == case["value"], case


def is_dapo(case: dict[str, Any]) -> bool:
    return str(case["rm_type"]).endswith("dapo")


def test_where_dapo_differs_from_slime_it_reads_the_label_digit_by_digit() -> None:
    rule = importlib.import_module(REWARDS.places["dapo"]).dapo.__wrapped__
    differing = [case for case in CASES if is_dapo(case) and case["label"] in OWN]
    assert {case["label"] for case in differing} == OWN.keys()
    for case in differing:
        wanted = OWN[case["label"]]
        try:
            worth = rule(case["text"], case["label"], {})["score"]
        except RuleError as error:
            worth = "no integer" if "no integer" in str(error) else error
        assert worth == wanted != case["value"]["score"]


async def test_a_label_that_a_rule_cannot_read_is_the_rows_fault() -> None:
    with pytest.raises(RuleError, match="the label 'abc' is no integer"):
        await played("--rm-type dapo --reward-key score", {"label": "abc"}, "Answer: 3")


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{1}{2}\pi", "1/2π"),
        (r"\sqrt[3]{x}", "√(x)"),
        (r"\mathbb{R}\mathbf{x}\hat a", "ℝ𝐱â"),
        (r"\begin{pmatrix}1&-2\\3&4\end{pmatrix}", "[  1 -2;  3  4 ]"),
        (r"\unknown{a}\text{ b}\,c", "a b c"),
        (r"\frac", "%s/%s"),
        (r"\sqrt", None),
        ("{" * 500, None),
    ],
)
def test_latex_is_read_as_text(latex: str, text: str | None) -> None:
    assert plain_text(latex) == text


async def test_dapo_keeps_large_labels_whole_and_refuses_what_is_no_integer() -> None:
    flags = "--rm-type dapo --reward-key score"
    large = "9007199254740993"  # no float has this value
    assert (await played(flags, {"label": large}, f"Answer: {large}")).reward == 1.0
    for label in ("0.5", "nan", "1e999999"):
        with pytest.raises(RuleError, match="is no integer"):
            await played(flags, {"label": label}, "Answer: 0")
