"""Every help and metric text is a phrase that stands alone, in plain English."""

import argparse
import re
from collections.abc import Callable, Iterator

import pytest

from agentrl.cli.main import made_parser
from agentrl.config.fields import own_fields
from agentrl.telemetry.metrics import REGISTRY
from scripts.gen_flags import LAUNCHER

#: Those of agentrl: what tests declare comes later.
_METRICS = tuple(REGISTRY)
_HANGING = re.compile(
    r"(of|that|those|which|who|whose|and|but|or|it|its|the same|likewise)\b", re.IGNORECASE
)
#: What is said of the line above, and means nothing under another one. "the same role" has its
#: noun and "those of the learner" its owner: they stand alone.
_NEIGHBOUR = re.compile(
    r"see (above|below)|as (above|before|below)\b|\bditto\b|\bthe (former|latter)\b"
    r"|\bthe same(?= (as|by|for|in|of|to)\b|[,.;:)]|$)"
    r"|\bthose (?!of\b|that\b|to\b|which\b|who\b)|\b(by|for|of) that (?!of\b)",
    re.IGNORECASE,
)
_APOSTROPHE = re.compile(r"(?<=\w)'(?=s\b)|(?<=s)'(?=\W)")


def texts() -> Iterator[tuple[str, str]]:
    """What each flag, command and metric is called, and what is said of it."""
    for field in own_fields().values():
        yield field.flag, field.help
    for name, (_, text) in LAUNCHER.items():
        yield f"megatron --{name}", text
    for metric in _METRICS:
        yield metric.name, metric.help
    yield from of_commands(made_parser())


def of_commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """What a command says of each of its arguments and commands, and what these say of theirs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for brief in action._choices_actions:
                yield f"{parser.prog} {brief.dest}", brief.help or ""
            for command in action.choices.values():
                yield from of_commands(command)
        elif action.dest != "help":  # whose text is argparse's own
            yield f"{parser.prog} {action.dest}", action.help or ""


def begins_well(text: str) -> bool:
    """With a capital letter, a digit or a flag."""
    return re.match(r"[A-Z0-9]|--[a-z]", text) is not None


def stands_alone(text: str) -> bool:
    """It hangs on no line before it."""
    return _HANGING.match(text) is None and _NEIGHBOUR.search(text) is None


def is_balanced(text: str) -> bool:
    """Brackets close in their order, and quotes come in pairs."""
    open_ones: list[str] = []
    closing = {")": "(", "]": "[", "}": "{"}
    for letter in text:
        if letter in closing.values():
            open_ones.append(letter)
        elif letter in closing and (not open_ones or open_ones.pop() != closing[letter]):
            return False
    bare = _APOSTROPHE.sub("", text)
    return not open_ones and all(bare.count(quote) % 2 == 0 for quote in "'\"`")


def is_well_spaced(text: str) -> bool:
    """One space between words and none around them."""
    return text == " ".join(text.split())


def is_ended(text: str) -> bool:
    """Nothing is announced that does not come."""
    return not text.endswith((",", ":", ";", "-"))


def says_something(text: str) -> bool:
    """Three words, or two that are a name: `Learning rate`."""
    words = text.split()
    return len(words) > 2 or (
        len(words) == 2 and all(map(re.compile(r"\w[\w-]*").fullmatch, words))
    )


RULES: list[Callable[[str], bool]] = [
    begins_well,
    stands_alone,
    is_balanced,
    is_well_spaced,
    is_ended,
    says_something,
]


@pytest.mark.parametrize("rule", RULES)
def test_every_help_and_metric_text_keeps_the_rule(rule: Callable[[str], bool]) -> None:
    assert [f"{name}: {text}" for name, text in texts() if not rule(text)] == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", {begins_well, says_something}),
        ("learning rate", {begins_well}),
        ("... its turns whose calls fail", {begins_well}),
        ("Of those: failed for good", {stands_alone}),
        ("Whose third group became stale", {stands_alone}),
        ("The same for tokens of one age", {stands_alone}),
        ("Mean of the reward, as above", {stands_alone}),
        ("Arguments of that class as JSON", {stands_alone}),
        ("Largest over those tokens", {stands_alone}),
        ("Devices of all engines (default: one", {is_balanced}),
        ("Rows [a:b) of the file", {is_balanced}),
        ("Prefix 'ref_ of the model", {is_balanced}),
        ("Weight of  the bonus", {is_well_spaced}),
        ("What is recorded:", {is_ended}),
        ("Seed", {says_something}),
        ("Off (default)", {says_something}),
    ],
)
def test_a_text_that_is_not_plain_is_found(text: str, broken: set[Callable[[str], bool]]) -> None:
    assert {rule for rule in RULES if not rule(text)} == broken


@pytest.mark.parametrize(
    "text",
    [
        "Learning rate",
        "Adam beta1",
        "--wandb-group as it is, without six random letters",
        "Deadline of the engines' start, and of the learner's first push",
        "Project of the run (default: that of the key)",
        "Train on the same file in each iteration",
        "Prefix of the model's name: '', 'ref_' or 'teacher_'",
    ],
)
def test_a_plain_text_passes(text: str) -> None:
    assert [rule for rule in RULES if not rule(text)] == []
