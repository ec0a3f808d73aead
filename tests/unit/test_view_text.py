"""What a run says reaches a terminal or a page as text: whole, and never as a command."""

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from agentrl.actors.report import PlayedEpisode
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason
from agentrl.view.choice import Choice
from agentrl.view.dialogue import dialogue, pieces
from agentrl.view.episodes import read_episodes
from agentrl.view.html import page
from agentrl.view.text import print_episodes, print_played
from agentrl.view.tokenizer import load_vocab
from agentrl.visible import visible
from tests.unit.viewed_run import FORMAT, HOSTILE, headings, text, trained


def test_hostile_text_cannot_move_the_cursor_or_forge_a_heading(tmp_path: Path) -> None:
    shown = text(trained(tmp_path, HOSTILE), tokens=True, best=1)
    assert [c for c in shown if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160] == []
    assert "\u202e" not in shown
    assert "\u241b[2J" in shown
    assert headings(shown) == ["00000003/0#0"]
    turns = re.findall(r"^-- (.*) --$", shown, re.MULTILINE)
    assert turns == ["user", "turn 0, assistant", "turn 0, tool", "turn 1, assistant", "tokens"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_no_other_code_and_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    run, screen = trained(tmp_path, "[red]x[/red] :smile: " + HOSTILE), Terminal()
    print_episodes(screen, read_episodes(run, Choice()), load_vocab(run), tokens=True)
    colour = re.compile(r"\x1b\[[0-9;]*m")
    assert colour.search(screen.getvalue())
    assert colour.sub("", screen.getvalue()) == text(run, tokens=True)


def test_control_tokens_as_text_are_shown_and_end_no_part(tmp_path: Path) -> None:
    (episode,) = read_episodes(trained(tmp_path, HOSTILE), Choice(best=1))
    columns = episode.trajectories[0].columns
    assert columns is not None
    parts = dialogue(columns, FORMAT.vocab)
    assert [part.speaker for part in parts] == ["user", "assistant", "tool", "assistant"]
    assert parts[0].text == HOSTILE
    assert HOSTILE in parts[2].text


def test_a_page_is_well_formed_and_holds_hostile_text_only_as_text(tmp_path: Path) -> None:
    run = trained(tmp_path, HOSTILE)
    made = page(HOSTILE, read_episodes(run, Choice()), load_vocab(run), tokens=True)
    root = ElementTree.fromstring(made.removeprefix("<!DOCTYPE html>"))
    assert not list(root.iter("script"))
    assert "<script" not in made
    prompt, *_ = root.iter("pre")
    assert "".join(prompt.itertext()).rstrip("\n") == visible(HOSTILE)


def test_a_page_fetches_nothing_and_every_sampled_token_tells_its_facts(tmp_path: Path) -> None:
    run = trained(tmp_path)
    made = page("run", read_episodes(run, Choice(best=1)), load_vocab(run), tokens=False)
    assert not re.search(r"\b(src|href|url|@import|on\w+)\s*[=(]|https?:", made)
    root = ElementTree.fromstring(made.removeprefix("<!DOCTYPE html>"))
    titles = {span.get("title"): span.get("class") for span in root.iter("span")}
    assert titles["sampled, version 3, age 0, logprob -0.0500, advantage +0.7071"] == "s0"
    assert titles["sampled, version 3, age 0, logprob -3.0000, advantage +0.7071"] == "s3"
    assert titles["untrusted"] == "read"


def test_a_character_that_is_split_over_tokens_is_whole_and_nothing_is_lost() -> None:
    said = "caf\u00e9 \U0001f600\u4f60\u597d \ufffd end"
    ids = FORMAT.vocab.encode_untrusted(said)
    found = pieces(FORMAT.vocab, ids)
    assert len(found) == len(ids)
    assert "".join(found) == said
    cut = pieces(FORMAT.vocab, FORMAT.vocab.encode_untrusted("\U0001f600")[:1])
    assert cut == ["\ufffd"]


def test_an_episode_that_was_played_here_and_is_not_done_has_no_reward() -> None:
    stream = io.StringIO()
    id = EpisodeId("played", 0)
    report = EpisodeReport(id, Outcome.FILTERED, StopReason.CONTEXT_LIMIT, [])
    print_played(stream, PlayedEpisode(report, []), FORMAT.vocab)
    assert stream.getvalue() == "filtered, stopped by context_limit: no reward\n"
