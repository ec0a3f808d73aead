"""Episodes as one page: no script, nothing fetched, light and dark, legal as HTML and as XML.

Everything that a run wrote passes `visible` and the escaping of `_safe`; markup comes from here
alone. A policy in the page forbids scripts and requests, whatever else it holds.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from agentrl.tokens.vocab import Vocab
from agentrl.view.dialogue import DialoguePart, dialogue
from agentrl.view.episodes import EpisodeView, TrajectoryView
from agentrl.view.facts import TokenFacts, about, about_trajectory, signed, token_facts
from agentrl.visible import visible

__all__ = ["page"]

#: Least probability of the shades s0, s1, ... ; s4 is everything below.
_SHADES = (0.9, 0.5, 0.1, 0.01)

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fbfbf9; --line: #d9d9d2;
  --model: #e9f4ea; --tool: #e8f1f8; --shade: 214, 76, 40; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe3ea; --paper: #15181d; --line: #343a44;
  --model: #18291d; --tool: #16242f; --shade: 255, 122, 70; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2.5rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: 0 0 .5rem; }
dt { opacity: .65; } dd { margin: 0; overflow-wrap: anywhere; }
section { border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0;
  padding: .5rem .8rem; }
section.assistant { background: var(--model); } section.tool { background: var(--tool); }
h3 { font-size: .8rem; margin: 0 0 .3rem; opacity: .65; font-weight: 600; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 monospace; }
pre span:hover { outline: 1px solid currentColor; }
#shades:checked ~ main .s1 { background: rgba(var(--shade), .14); }
#shades:checked ~ main .s2 { background: rgba(var(--shade), .3); }
#shades:checked ~ main .s3 { background: rgba(var(--shade), .5); }
#shades:checked ~ main .s4 { background: rgba(var(--shade), .75); }
table { border-collapse: collapse; font: 12px/1.4 monospace; }
td, th { border: 1px solid var(--line); padding: 0 .5rem; text-align: left; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, episodes: Sequence[EpisodeView], vocab: Vocab, *, tokens: bool) -> str:
    """The page of `episodes`; every token tells its facts under the pointer, and with `tokens` in
    a table as well."""
    name = _safe(title)
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
            '<meta name="viewport" content="width=device-width"/>',
            f"<title>{name}</title><style>{_STYLE}</style></head><body>\n<h1>{name}</h1>\n",
            '<input type="checkbox" id="shades"/><label for="shades"> colour tokens: the stronger,',
            " the less likely</label>\n<main>\n",
            *(text for episode in episodes for text in _episode(episode, vocab, tokens)),
            "</main></body></html>\n",
        ]
    )


def _episode(episode: EpisodeView, vocab: Vocab, tokens: bool) -> Iterator[str]:
    yield f"<article><h2>episode {_safe(episode.name)}</h2>\n<dl>"
    for name, value in about(episode):
        yield f"<dt>{_safe(name)}</dt><dd>{_safe(value)}</dd>"
    yield "</dl>\n"
    if not episode.trajectories:
        yield "<p>it left no trajectory</p>\n"
    for trajectory in episode.trajectories:
        advantage = episode.advantage_of(trajectory.meta.role)
        yield from _trajectory(trajectory, advantage, vocab, tokens)
    yield "</article>\n"


def _trajectory(
    trajectory: TrajectoryView, advantage: float | None, vocab: Vocab, tokens: bool
) -> Iterator[str]:
    yield f"<p>{_safe(about_trajectory(trajectory))}</p>\n"
    columns, ages = trajectory.columns, trajectory.ages
    if columns is None or ages is None:
        yield f"<p>its tokens are not kept: {_safe(trajectory.missing)}</p>\n"
        return
    positions = range(len(columns["tokens"]))
    facts = [token_facts(columns, ages, position, advantage) for position in positions]
    for part in dialogue(columns, vocab):
        yield from _part(part, facts)
    if tokens:
        yield from _table(columns["tokens"].tolist(), facts, vocab)


def _part(part: DialoguePart, facts: list[TokenFacts]) -> Iterator[str]:
    side = "assistant" if part.by_model else "tool" if part.turn >= 0 else "prompt"
    turn = f"turn {part.turn}, " if part.turn >= 0 else ""
    yield f'<section class="{side}"><h3>{turn}{_safe(part.speaker)}</h3>\n<pre>'
    for position, text in enumerate(part.texts, start=part.start):
        if text:
            fact = facts[position]
            yield f'<span class="{_shade(fact)}" title="{_title(fact)}">{_safe(text)}</span>'
    yield "</pre></section>\n"


def _table(ids: list[int], facts: list[TokenFacts], vocab: Vocab) -> Iterator[str]:
    heads = ("position", "id", "turn", "kind", "version", "age", "logprob", "advantage", "text")
    yield "<details><summary>tokens</summary><table><tr>"
    yield "".join(f"<th>{head}</th>" for head in heads) + "</tr>\n"
    for position, (id_, fact) in enumerate(zip(ids, facts, strict=True)):
        known = (fact.version, fact.age, _nats(fact), _gain(fact))
        shown = ["-" if value is None else str(value) for value in known]
        cells = [position, id_, fact.turn, fact.kind, *shown, vocab.decode([id_])]
        yield "<tr>" + "".join(f"<td>{_safe(str(cell))}</td>" for cell in cells) + "</tr>\n"
    yield "</table></details>\n"


def _shade(fact: TokenFacts) -> str:
    if fact.logprob is None:
        return "read"
    probability = math.exp(min(fact.logprob, 0.0))
    return f"s{sum(probability < least for least in _SHADES)}"


def _title(fact: TokenFacts) -> str:
    if fact.logprob is None:
        return fact.kind
    age = "" if fact.age is None else f", age {fact.age}"
    gain = "" if fact.advantage is None else f", advantage {_gain(fact)}"
    return f"{fact.kind}, version {fact.version}{age}, logprob {_nats(fact)}{gain}"


def _nats(fact: TokenFacts) -> str | None:
    return None if fact.logprob is None else f"{fact.logprob:.4f}"


def _gain(fact: TokenFacts) -> str | None:
    return None if fact.advantage is None else signed(fact.advantage)


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)
