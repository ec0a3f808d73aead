"""What a template says of calls and of thoughts, learnt from what it writes of two turns."""

from collections.abc import Mapping, Sequence

from agentrl.errors import ConfigError
from agentrl.tokens.formats.thoughts import THINK_END
from agentrl.tokens.templates.calls import CallsOf, Shown, learn_calls
from agentrl.tokens.templates.hidden import Words
from agentrl.tokens.templates.plain import Plain, call_of
from agentrl.tokens.templates.probe import TOOL, TemplateProbe

__all__ = ["how_calls_are_written", "how_thoughts_are_shown"]


def how_calls_are_written(probe: TemplateProbe) -> tuple[CallsOf, str]:
    """How calls are written, and one for people to read. It is tried with two calls and one, with
    arguments as data and as text, which `probe` goes on with. Raises ConfigError, saying why not,
    of the first trial."""
    reason: ConfigError | None = None
    for probe.as_text in (False, True):
        for num in (2, 1):
            try:
                return _calls(probe, num), _example(probe)
            except ConfigError as error:
                reason = reason or error
    probe.as_text = False
    assert reason is not None
    raise reason


def how_thoughts_are_shown(
    probe: TemplateProbe, before: str
) -> tuple[bool, bool, Mapping[bool, str]]:
    """Whether thoughts are shown, whether the answer of a user drops them, and what then stands in
    place of one, before words and (True) before a call alone, which begins with `before`."""
    words, question, turn = probe.turn()
    thought = words.fresh("why")
    turn["reasoning_content"] = thought
    if words.place(probe.rendered(words, [question, turn]), thought) is None:
        return False, False, {False: "", True: ""}
    answer = {"role": "user", "content": words.fresh("and?")}
    answered = probe.rendered(words, [question, turn, answer])
    if words.place(answered, thought) is not None:
        return True, False, {False: "", True: ""}
    lead = _lead(probe, words, answered, turn["content"])
    if not before.strip():
        return True, True, {False: lead, True: lead}
    call = call_of(
        words.fresh("call_0_0"), words.fresh("look"), {"a": words.fresh("b")}, probe.as_text
    )
    alone = {**turn, "content": "", "tool_calls": [call]}
    answered = probe.rendered(words, [question, alone, answer], [TOOL])
    return True, True, {False: lead, True: _lead(probe, words, answered, before.strip())}


def _lead(probe: TemplateProbe, words: Words, rendered: str, until: str) -> str:
    """What an answered turn begins with, up to its words or its call."""
    begin = probe.turn_begins(rendered)
    return rendered[begin : max(begin, rendered.find(until, begin))]


def _calls(probe: TemplateProbe, num: int) -> CallsOf:
    words, question, turn = probe.turn()
    names = [words.fresh("look"), words.fresh("see")][:num]
    keys = [(words.fresh(f"key {key}"), words.fresh(f"value {key}")) for key in "abc"]
    pairs: Sequence[Mapping[str, str]] = [dict(keys[:2]), dict(keys[2:])][:num]
    turn["tool_calls"] = [
        call_of(words.fresh(f"call_0_{at}"), name, pair, probe.as_text)
        for at, (name, pair) in enumerate(zip(names, pairs, strict=True))
    ]
    rendered = probe.rendered(words, [question, turn], [TOOL])
    if any(words.place(rendered, name) is None for name in names):
        raise ConfigError(f"{probe.template.place} does not show the names of calls")
    said = words.place(rendered, turn["content"])
    begin = said[1] if said is not None else probe.turn_begins(rendered)
    body = probe.before_end(words, rendered[begin:])
    found = learn_calls(Shown(body, names, pairs), probe.marks)
    if found is None:
        raise ConfigError(
            f"{probe.template.place} writes calls in a way that cannot be learnt from it: "
            f"{words.told(body).strip()[:200]!r}; write a --chat-format for it (docs/formats.md)"
        )
    return found


def _example(probe: TemplateProbe) -> str:
    words, question, turn = probe.turn()
    name, key, value = (words.fresh(text) for text in ("NAME", "KEY", "VALUE"))
    call = call_of(words.fresh("call_0_0"), name, {key: value}, probe.as_text)
    alone: Plain = {**turn, "content": "", "tool_calls": [call]}
    rendered = probe.rendered(words, [question, alone], [TOOL])
    body = probe.before_end(words, rendered[probe.turn_begins(rendered) :])
    return words.told(body).rpartition(THINK_END)[2].strip()
