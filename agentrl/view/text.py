"""Episodes as plain text, for a terminal or a pipe.

Lines of a conversation are set in by two blanks and headings are not, so no text of a model or tool
can pass for a heading. All of it is `visible`; colours are rich's, and only on a terminal.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from agentrl.columns import dealt
from agentrl.tokens.vocab import Vocab
from agentrl.types import Outcome
from agentrl.view.dialogue import DialoguePart, dialogue
from agentrl.view.episodes import EpisodeView, TrajectoryView
from agentrl.view.facts import about, about_trajectory, signed, token_facts
from agentrl.visible import visible
from agentrl.wire.arrays import as_arrays

if TYPE_CHECKING:
    from agentrl.actors.report import PlayedEpisode

__all__ = ["print_episodes", "print_played"]

_STYLES = {"assistant": "green", "tool": "cyan", "observation": "cyan"}
_HEAD = "  position     id  turn kind          version  age  logprob  advantage  text"

#: A line and its style.
Line = tuple[str, str]


def print_episodes(
    stream: TextIO, episodes: Sequence[EpisodeView], vocab: Vocab, *, tokens: bool
) -> None:
    """Write `episodes` to `stream`; with `tokens` every token has a line too."""
    console = Console(file=stream)
    plain = not stream.isatty() or console.is_dumb_terminal or os.environ.get("NO_COLOR")
    for line, style in _lines(episodes, vocab, tokens):
        if plain:
            stream.write(line + "\n")
        else:
            console.print(Text(line, style=style), soft_wrap=True)


def print_played(stream: TextIO, played: "PlayedEpisode", vocab: Vocab) -> None:
    """Write an episode that has just been played here: what was said, and how it ended."""
    report = played.report
    each = dealt(report.layouts, played.columns)
    for meta, own in zip(report.trajectories, each, strict=True):
        columns = as_arrays(meta.layout, meta.num_tokens, own)
        for line, _ in _conversation(TrajectoryView(meta, columns, None), vocab):
            stream.write(f"{line}\n")
    reward = f"reward {report.reward:g}" if report.outcome is Outcome.DONE else "no reward"
    what = visible(report.error) if report.error else reward
    stream.write(f"{report.outcome}, stopped by {report.stop_reason}: {what}\n")


def _lines(episodes: Iterable[EpisodeView], vocab: Vocab, tokens: bool) -> Iterator[Line]:
    for number, episode in enumerate(episodes):
        if number:
            yield "", ""
        yield f"==== episode {episode.name} ====", "bold"
        for name, value in about(episode):
            yield f"{name + ':':<12}{value}", "dim" if name == "task" else ""
        if not episode.trajectories:
            yield "it left no trajectory", "dim"
        for trajectory in episode.trajectories:
            yield from _conversation(trajectory, vocab)
            if tokens and trajectory.columns is not None:
                yield from _tokens(trajectory, vocab, episode.advantage_of(trajectory.meta.role))


def _conversation(trajectory: TrajectoryView, vocab: Vocab) -> Iterator[Line]:
    """What was said in a trajectory."""
    yield about_trajectory(trajectory), ""
    if trajectory.columns is None:
        yield f"its tokens are not kept: {visible(trajectory.missing)}", "red"
        return
    for part in dialogue(trajectory.columns, vocab):
        style = _STYLES.get(part.speaker, "")
        yield _heading(part), f"bold {style}"
        for line in visible(part.text).split("\n"):
            yield f"  {line}".rstrip(), style


def _heading(part: DialoguePart) -> str:
    turn = f"turn {part.turn}, " if part.turn >= 0 else ""
    return f"-- {turn}{visible(part.speaker)} --"


def _tokens(trajectory: TrajectoryView, vocab: Vocab, advantage: float | None) -> Iterator[Line]:
    columns, ages = trajectory.columns, trajectory.ages
    assert columns is not None
    assert ages is not None
    yield "-- tokens --", "bold"
    yield _HEAD, "dim"
    for position, id_ in enumerate(columns["tokens"].tolist()):
        facts = token_facts(columns, ages, position, advantage)
        text = visible(vocab.decode([id_])).replace("\n", "\u240a").replace("\t", "\u2409")
        logprob = "-" if facts.logprob is None else f"{facts.logprob:.4f}"
        gain = "-" if facts.advantage is None else signed(facts.advantage)
        place = f"  {position:>8} {id_:>6} {facts.turn:>5} {facts.kind:<13}"
        known = f"{_or(facts.version):>7} {_or(facts.age):>4} {logprob:>8} {gain:>10}"
        style = _STYLES["assistant"] if facts.logprob is not None else "dim"
        yield f"{place} {known}  {text}", style


def _or(number: int | None) -> str:
    return "-" if number is None else str(number)
