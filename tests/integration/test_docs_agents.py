"""What docs/agents.md shows does what the page says: its agent is played, its words are true."""

import json
import re
import subprocess
import sys
from pathlib import Path

from agentrl.actors.endpoint.requests import STEERING
from tests.unit.page_snippets import ROOT, snippets

PAGE = (ROOT / "docs" / "agents.md").read_text()

#: In a process of its own, for the agent takes a name.
PLAY = """
import json, sys
import anyio, msgspec
from agentrl.envs.registry import load_env
from agentrl.types import Task
from tests.unit.rollout_ground import Policy, call_of, check_tokens, play

policy = Policy([
    call_of("times", '{"a": 12}'), call_of("times", '{"a": 12, "b": 13}'), "156<|im_end|>"
])
played = anyio.run(
    lambda: play(load_env(sys.argv[1]), policy, task=Task("t", {"a": 12, "b": 13}))
)
check_tokens(played, policy)
print(json.dumps([played.report.reward, played.report.metrics["segments"], policy.prompts[-1]]))
"""


def test_the_agent_of_the_page_is_played_and_its_mistakes_are_told_to_it(tmp_path: Path) -> None:
    (block,) = [snippet.text for snippet in snippets(PAGE) if snippet.name == "sums.py"]
    (tmp_path / "sums.py").write_text(block)
    argv = [sys.executable, "-c", PLAY, str(tmp_path / "sums.py")]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    reward, segments, prompt = json.loads(said.stdout)
    assert (reward, segments) == (1.0, 1.0)
    assert "error: KeyError('b')" in prompt
    assert "<tool_response>\n156\n" in prompt


def test_the_loop_of_the_page_has_at_most_twenty_lines() -> None:
    (block,) = [snippet.text for snippet in snippets(PAGE) if snippet.name == "sums.py"]
    assert len(block[block.index("@rollout") :].splitlines()) <= 20


def test_the_page_names_what_is_ignored() -> None:
    (row,) = re.findall(r"^\| `messages`.*$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    steering = {"temperature", "top_p", "seed", "response_format", "parallel_tool_calls"}
    assert steering <= named
    assert steering <= set(STEERING)
