"""What a mixture cannot be told is refused with the name of its part, all at once; what one part
reads is not."""

import math
from typing import Any

import pytest

from agentrl.config.mixture import parts_of
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError
from tests.unit.mixtures import MODEL, parsed, pears, refused, rows, rows_part

__all__ = ["rows"]


def test_a_default_that_some_parts_cannot_read_is_no_fault() -> None:
    config = parsed({"name": "rows", "prompt_data": "train.jsonl"}, pears(), rm_type="math").config
    rows, fruit = parts_of(config)
    assert rows.config.env_args == {"rm_type": "math"}
    assert fruit.config.env_args == {}


def test_a_flag_that_one_part_reads_is_read() -> None:
    parsed(rows_part(), pears(), flags="--max-tool-calls 3 --rollout-shuffle")
    assert "--rollout-shuffle: this is about the rows" in refused(
        pears(), flags="--rollout-shuffle"
    )


def test_all_that_a_part_cannot_be_told_is_refused_at_once() -> None:
    said = refused(
        rows_part(n_samples_per_prompt=2, top_p=0.9, max_turn=3),
        rows_part("b/c"),
        pears("d", weight=-1),
        pears("e", weight=[[3, 1], [3, 2]], eval="held"),
        pears("f", max_response_len=0),
        pears("g", weight=True),
        pears("h", weight=math.inf),
    )
    for part in (
        "sums: unknown key max_turn; did you mean max_turns?",
        "sums: n_samples_per_prompt: groups are of one size: give --n-samples-per-prompt",
        "sums: top_p: training needs the probabilities of all tokens",
        "a part cannot be called 'b/c'",
        "d: weight is -1, and must be a number of 0 or more",
        "e: weight is [[3, 1], [3, 2]]",
        "e: eval is 'held', and must be a list",
        "f: max_response_len: --rollout-max-response-len cannot be 0",
        "g: weight is True",
        "h: weight is inf",
    ):
        assert part in said, f"{part!r} is not in {said}"


def test_a_flag_that_a_refused_part_reads_is_not_refused_too() -> None:
    said = refused(rows_part(max_turn=3), pears(), flags="--max-tool-calls 3 --rollout-shuffle")
    assert "sums: unknown key max_turn" in said
    assert "--rollout-shuffle" not in said


def test_a_part_whose_prompts_are_rendered_in_any_case_is_told_so() -> None:
    notes = parsed(rows_part(apply_chat_template=True), pears()).notes
    said = "--env-mix: sums: apply_chat_template: already so: prompts are always rendered"
    assert any(note.startswith(said) for note in notes)
    assert "sums: apply_chat_template: false cannot be" in refused(
        rows_part(apply_chat_template=False)
    )


@pytest.mark.parametrize(
    ("parts", "flags", "said"),
    [
        ([rows_part(), rows_part()], "", "--env-mix names sums twice"),
        ([], "", "`parts` must be a list"),
        ([rows_part(weight=0), pears(weight=0)], "", "at iteration 0 no part has a weight"),
        ([rows_part(weight=[[0, 1], [9, 0]])], "", "at iteration 9 no part has a weight"),
        ([rows_part()], "--prompt-data train.jsonl", "each part of a mixture names tasks"),
        ([rows_part()], "--data-source-path m.py", "each part of a mixture names tasks"),
        ([rows_part(temperature=-1)], "", "sums: temperature: --rollout-temperature"),
        (
            [pears(), rows_part(temperature=0.7)],
            "--use-opd --opd-type sglang --rm-url http://teacher:1",
            "sums: --rollout-temperature 0.7 with --opd-type sglang",
        ),
        ([pears(rm_type="math")], "", "pears: rm_type: only --env single-turn, tools"),
        ([pears(reward_key="acc")], "", "pears: reward_key: only a reward of --rm-type"),
        ([pears(metadata_key="m")], "", "pears: metadata_key: this is about the rows"),
        (
            [pears(custom_generate_function_path="a.py")],
            "",
            "pears: custom_generate_function_path:",
        ),
        ([rows_part("eval0")], "", "a part cannot be called 'eval0'"),
        (
            [rows_part(eval=[{"name": "x", "path": "eval.jsonl", "top_k": 0}])],
            "",
            "sums-x: --eval-top-k",
        ),
        (
            [rows_part(eval=[{"name": "x", "path": "gone"}])],
            "",
            "sums: eval gone: there is no file",
        ),
        ([rows_part(prompt_data="gone.jsonl")], "", "sums: --prompt-data gone.jsonl: there is no"),
        ([rows_part(max_context_len=10**6)], "", "sums: --rollout-max-context-len 1000000 is more"),
        ([rows_part(eval=[{"name": "x", "pth": "a"}])], "", "sums: eval: x: unknown key pth"),
        ([rows_part(eval=[{"name": "x", "path": "gone"}])], "", "there is no file"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(parts: Any, flags: str, said: str) -> None:
    assert said in refused(*parts, flags=flags)


def test_a_file_that_is_none_is_refused_by_its_name() -> None:
    words = f"--hf-checkpoint {MODEL} --device cpu --env-mix"
    with pytest.raises(ConfigError, match=r"--env-mix gone\.toml cannot be read"):
        parse([*words.split(), "gone.toml"], "train_async")
