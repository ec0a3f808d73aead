"""`ratio:stop_words` of IFBench (https://arxiv.org/abs/2507.02833, appendix): which words are stop
words, and how many of a text's may be.

The list is that of English function words in the manner of the Snowball project
(https://snowballstem.org/algorithms/english/stop.txt): articles, pronouns, prepositions,
conjunctions, auxiliary verbs, a few adverbs, and what stands before and after the apostrophe of a
contraction, because words are runs of letters here and `don't` is `don` and `t`.
"""

from agentrl.envs.grading.instructions.checks import checks
from agentrl.envs.grading.instructions.texts import words

__all__ = ["STOP_WORDS", "stop_words"]

_PRONOUNS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her
hers herself it its itself they them their theirs themselves what which who whom this that these
those
"""
_VERBS = """
am is are was were be been being have has had having do does did doing can will should
"""
_SMALL = """
a an the and but if or because as until while of at by for with about against between into through
during before after above below to from up down in out on off over under again further then once
here there when where why how all any both each few more most other some such no nor not only own
same so than too very just now
"""
_CONTRACTED = """
s t d ll m o re ve y ma don ain aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan
shouldn wasn weren won wouldn
"""
STOP_WORDS = frozenset((_PRONOUNS + _VERBS + _SMALL + _CONTRACTED).split())


@checks("ratio:stop_words")
def stop_words(text: str, percentage: float) -> bool:
    """Of all words, at most so many per cent."""
    found = [word.lower() in STOP_WORDS for word in words(text)]
    return bool(found) and 100 * sum(found) <= percentage * len(found)
