"""The tour follows the code: its stops are there, call each other, and name few types."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.algorithms.base import NoArgs
from agentrl.algorithms.grpo import Grpo
from agentrl.columns import COLUMNS, TOKEN_BYTES
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import open_chat_format
from agentrl.envs.messages import Message, ToolCall
from agentrl.tokens.transcript import Transcript
from scripts.tour import PAGE, Stop, TourError, callers, parameters, result, stops, told, types

pytestmark = pytest.mark.slow

MODEL = Path(__file__).resolve().parents[2] / "agentrl" / "envs" / "search_r1" / "model"
TEXT = PAGE.read_text(encoding="utf-8")
STOPS = stops(TEXT)
FUNCTION = "[agentrl/types.py](../agentrl/types.py) `Task`,\n"
CALLER = "called in [agentrl/types.py](../agentrl/types.py)\n"

at_every_stop = pytest.mark.parametrize("stop", STOPS, ids=[stop.function for stop in STOPS])


def test_there_are_twenty_stops_each_with_a_number_and_a_function_of_its_own() -> None:
    assert [stop.number for stop in STOPS] == list(range(1, 21))
    assert len({(stop.place, stop.function) for stop in STOPS}) == 20


@at_every_stop
def test_the_function_of_a_stop_is_in_its_file(stop: Stop) -> None:
    assert stop.tree.name == stop.function.rsplit(".", 1)[-1]


@at_every_stop
def test_a_stop_is_called_where_the_page_says(stop: Stop) -> None:
    assert callers(stop)


@at_every_stop
def test_what_goes_in_is_among_the_parameters_and_what_comes_out_among_the_results(
    stop: Stop,
) -> None:
    assert set(told(stop, "in")) <= set(parameters(stop))
    assert set(told(stop, "out")) <= set(result(stop))


@at_every_stop
def test_a_stop_takes_one_to_three_sentences(stop: Stop) -> None:
    (prose,) = [part for part in stop.text.split("\n\n") if part[:1].isupper()]
    assert 1 <= len(re.findall(r"[.?](?=\s|$)", prose)) <= 3


def test_a_reader_meets_at_most_forty_types() -> None:
    found = types(TEXT)
    assert len(found) <= 40, sorted(found)
    assert "agentrl.types.Task" in found
    # two types of one name are two
    assert {"agentrl.tokens.chat.Message", "agentrl.wire.messages.Message"} <= found.keys()


def test_a_type_that_only_a_sentence_names_is_counted() -> None:
    more = TEXT.replace(
        "## The example", "A `GroupRow` and a LeaseRow. `Tell` me.\n\n## The example"
    )
    new = types(more).keys() - types(TEXT).keys()
    assert new == {
        "agentrl.buffer.rows.GroupRow",
        "agentrl.buffer.rows.LeaseRow",
        "agentrl.learner.schedule.Tell",
    }


def test_a_stop_without_its_function_is_told() -> None:
    (stop,) = stops(f"### 1. Nothing\n\n{FUNCTION.replace('Task', 'Task.gone')}{CALLER}")
    with pytest.raises(TourError, match="has no Task"):
        _ = stop.tree
    with pytest.raises(TourError, match="0 lines of its function"):
        stops("### 1. Nothing\n\nNo link.\n")


def test_a_name_that_may_be_any_of_several_types_is_told() -> None:
    with pytest.raises(TourError, match="Message on the page may be any of"):
        types("A `Message`.\n")


def test_the_tokens_of_the_example_are_those_of_the_default_jobs_model() -> None:
    chat = open_chat_format("qwen", MODEL)
    transcript = Transcript(chat)
    passages = re.findall(r"^ .* (The .+\.)", TEXT, re.MULTILINE)
    call = ToolCall("0", "search", b'{"query": "capital of Bulgaria"}')
    transcript.open([Message.user("Tell me the capital of Bulgaria.")])
    sizes = [0, len(transcript)]
    for turn, answer in (
        (chat.write("", [call]), passages),
        (chat.write("<answer> Sofia </answer>"), []),
    ):
        transcript.prompt_ids()
        transcript.sampled(turn, [-0.5] * len(turn), [7] * len(turn))
        sizes.append(len(transcript))
        if answer:
            assert transcript.observe([Message.tool("\n".join(f" {line}" for line in answer))], 512)
            sizes.append(len(transcript))
    assert [after - before for before, after in pairwise(sizes)] == [18, 25, 53, 7]
    assert [len(transcript), transcript.num_sampled] == [103, 32]
    drawing = re.findall(r"^ (?:user|assistant|tool) .*|^ {13}The .*", TEXT, re.MULTILINE)
    assert [int(n) for n in re.findall(r"(\d+)$", "\n".join(drawing), re.MULTILINE)] == [
        18,
        25,
        53,
        7,
    ]
    assert f"{103 * TOKEN_BYTES:,} bytes" in TEXT
    assert f"({', '.join(COLUMNS)})" in TEXT


def test_the_advantages_of_the_example_are_those_of_the_code() -> None:
    right, *_, wrong = Grpo(RunConfig(), NoArgs()).values([1.0] * 3 + [0.0] * 5)
    assert f"gets {right:.2f}" in TEXT
    assert f"gets {wrong:.2f}" in TEXT
