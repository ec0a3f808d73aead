"""Paths with the number of an iteration in them: templates of `str.format`, as slime has them."""

from pathlib import Path

import pytest

from agentrl.config.retention import about_retention
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.numbered import about_template, is_numbered, literal, numbered


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("m", "m"),
        ("m/{rollout_id}", "m/7"),
        ("m_{rollout_id:05d}", "m_00007"),
        ("{rollout_id:03}/{rollout_id}", "007/7"),
        ("{{x}}/{rollout_id:d}", "{x}/7"),
    ],
)
def test_a_number_is_written_as_str_format_writes_it(template: str, path: str) -> None:
    assert numbered(template, 7) == Path(path) == Path(template.format(rollout_id=7))
    assert is_numbered(template) == ("{rollout_id" in template)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("m_{foo}", "{foo} is unknown; {rollout_id} is the iteration's number"),
        ("m_{}", "{} is unknown"),
        ("m_{rollout_id.real}", "{rollout_id.real} is unknown"),
        ("m_{rollout_id", "it cannot be read: expected '}'"),
        ("m_}", "it cannot be read: Single '}'"),
        ("m_{rollout_id:x}", "a number is written as {rollout_id}, or with zeros as"),
        ("m_{rollout_id:{w}}", "a number is written as {rollout_id}"),
        ("m_{rollout_id!r}", "a number is written as {rollout_id}"),
    ],
)
def test_what_is_no_number_of_an_iteration_is_refused_before_start(template: str, why: str) -> None:
    assert why in about_template(template)
    (line,) = about_retention(RunConfig(save_hf=template))
    assert line.startswith(f"--save-hf {template}: ")
    with pytest.raises(ConfigError, match="m_"):
        numbered(template, 1)


def test_a_path_may_have_braces_of_its_own() -> None:
    assert numbered(literal("a{b}/{rollout_id}"), 1) == Path("a{b}/{rollout_id}")
