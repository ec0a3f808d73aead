"""What the quickstart shows is what the code prints, and its Env works; nothing real is started."""

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agentrl.cli.main import main as agentrl_program
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.registry import load_env
from agentrl.tokens.chat import Message, ToolCall
from tests.unit.left_run import leave_run
from tests.unit.page_checks import called, dry_run
from tests.unit.page_snippets import ROOT, snippets

QUICKSTART = ROOT / "docs" / "quickstart.md"


def output(beginning: str) -> str:
    """The output on the page that begins so. A line that is broken goes on after four blanks."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", QUICKSTART.read_text(), re.DOTALL | re.MULTILINE)
    (text,) = [text for language, text in blocks if not language and text.startswith(beginning)]
    return re.sub(r"\n {4}(?=\S)", " ", text)


def shape(text: str) -> str:
    """`text` without its numbers, durations, bars and run directory."""
    text = re.sub(r"see \S+", "see RUN", re.sub("[▁-█]+", "|", text))
    return re.sub(r"\d[\d.]*(?:[hm]\d+[ms]?|s)?", "#", text)


def told() -> Iterator[str]:
    """Patterns of what set-up and the driver may say: their own words, any text in the gaps."""
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    cluster = "".join(path.read_text() for path in sorted((ROOT / "agentrl/cluster").glob("*.py")))
    said = [f"setup: {words}" for words in re.findall(r'^ *say "(.+)"$', setup, re.MULTILINE)]
    said += re.findall(r'\.note\(f"([^{].*)"\)', cluster)
    for text in said:
        words = re.split(r"\{.*?\}|\$\(\(.*?\)\)|\$\(.*?\)|\$\w+", text)
        yield ".+".join(map(re.escape, words))


def test_the_transcript_is_what_a_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    patterns = [*told(), *(re.escape(line) for line in dry_run("train_async.py", []).splitlines())]
    shapes = set(shape(leave_run(tmp_path / "ID")).splitlines())
    for line in output("setup: ").splitlines():
        known = line == "..." or shape(line) in shapes
        assert known or any(re.fullmatch(pattern, line) for pattern in patterns), line


def test_the_episode_is_what_the_viewer_shows(tmp_path: Path) -> None:
    leave_run(tmp_path / "ID")
    code, said = called(lambda: agentrl_program(["view", str(tmp_path / "ID")]))
    head, conversation = shape(output("==== episode ")).split("...\n")
    assert code == 0
    assert shape(said).startswith(head)
    assert shape(said).endswith(f"\n{conversation}")


def test_the_page_fits_on_a_few_screens_and_activates_what_it_calls() -> None:
    page = QUICKSTART.read_text()
    assert len(page.splitlines()) <= 150
    commands = [snippet.text for snippet in snippets(page) if snippet.language == "command"]
    first = next(command for command in commands if not command.startswith("make "))
    assert first == "source .venv/bin/activate"


def test_the_calculator_calculates_and_is_scored(tmp_path: Path) -> None:
    blocks = {snippet.name: snippet.text for snippet in snippets(QUICKSTART.read_text())}
    (tmp_path / "calculator.py").write_text(blocks["calculator.py"])
    env = load_env(f"{tmp_path / 'calculator.py'}:Sums")()

    async def use() -> tuple[list[Message], Step, list[float]]:
        prompt = await env.reset(seed=0, task={"a": 47, "sign": "*", "b": 17})
        given = (b'{"a": 47, "sign": "*", "b": 17}', b'{"a": 47, "sign": "/", "b": 17}')
        calls = [ToolCall(str(n), "calculate", arguments) for n, arguments in enumerate(given)]
        step = await env.step(AssistantTurn("", calls, None, "stop", 0))
        return prompt, step, [await env.score(f"<answer> {n} </answer>") for n in (799, 798)]

    prompt, step, rewards = anyio.run(use)
    assert prompt[0].content.startswith("What is 47 * 17?")
    assert step.messages[0].content == "799"
    assert step.messages[1].content.startswith("error: invalid arguments for calculate")
    assert rewards == [1.0, 0.0]
