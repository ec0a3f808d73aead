"""How a text is cut into sentences: by the rules of Punkt (https://aclanthology.org/J06-4003), with
the words that its model of English, which the published checks ask, knows as abbreviations and as
beginnings of a sentence. Of other words that model has counted how they are written; here a capital
decides, so a text with odd abbreviations may be cut otherwise.

    a chunk between white space -> its last mark that may end a sentence -> does it?
"""

import re
from collections.abc import Iterator

__all__ = ["sentences"]

_CLOSERS = "[)\\\"';}\\]*:@({\\[?!\u2018\u2019\u201c\u201d\u00ab\u00bb]"
_CHUNK = re.compile(r"\S+")
#: A mark that may end a sentence, within a chunk; at its end each may.
_WITHIN = re.compile(rf"[.?!](?={_CLOSERS})")
#: Between the words of a chunk, of which one may begin in a quote.
_APART = re.compile(r"[)\";}\]*:@({\[`&#]|--+|(?=['\u2018\u2019\u201c\u201d\u00ab\u00bb])")
#: Closing marks belong to the sentence before them.
_CLOSING = re.compile(r"\s*[\"')\]}\u2018\u2019\u201c\u201d\u00ab\u00bb]+(?=\s|--|$)")
_ELLIPSIS = re.compile(r"\.{2,}$")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.")
_INITIAL = re.compile(r"[^\W\d]\.")
_WORD = re.compile(r"[\w'-]+")
_ABBREVIATIONS = """
a.a a.c a.d a.g a.h a.m a.m.e a.s a.t adm ala ariz aug ave b.f b.v bros c c.i.t c.o.m.b c.v calif
chg cie co col colo conn corp cos ct d d.c d.h d.w dec dr e e.f e.h e.l e.m f f.g f.j feb fla fri
ft g g.d g.f g.k ga gen h h.c h.f h.m i.m.s ill inc j.b j.c j.j j.k j.p j.r jan jr k kan ky l l.a
l.f l.p lt ltd m m.b.a m.d.c m.j maj messrs mg mich minn mr mrs ms n n.c n.d n.h n.j n.m n.v n.y
nev nov oct ok okla ore p p.a.m p.m pa ph.d prof r r.a r.h r.i r.j r.k r.t rep reps s s.a s.a.y
s.c s.g s.p.a s.s sen sep sept sr st sw t t.j tenn tues u.k u.n u.s u.s.a u.s.s.r v va vs vt w w.c
w.r w.va w.w wash wed wis yr
"""
#: What begins a sentence, behind what else would be an abbreviation.
_BEGINNINGS = """
according although among both but despite even he however i if in indeed instead it many meanwhile
moreover most nevertheless nonetheless nor sales separately similarly since so some the there these
they this though thus under when while yet
always between does either finally furthermore here into nothing sometimes still such therefore
think through unless very were which without yes your
"""
_SHORT = frozenset(_ABBREVIATIONS.split())
_STARTERS = frozenset(_BEGINNINGS.split())


def sentences(text: str) -> list[str]:
    """The sentences of a text, each without the white space around it, in their order."""
    start, found = 0, []
    for end in _ends(text):
        # closing marks belong to what they close
        end += len(closing[0]) if (closing := _CLOSING.match(text, end)) else 0
        found.append(text[start:end].strip())
        start = end
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def _ends(text: str) -> Iterator[int]:
    """Places behind a mark that ends a sentence which is not the last."""
    chunks = [*_CHUNK.finditer(text)]
    for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
        places = [mark.end() for mark in _WITHIN.finditer(chunk[0])]
        if chunk[0][-1] in ".?!" and following:
            places.append(len(chunk[0]))
        # of several the last, and one that the chunk begins with
        for place in sorted({place for place in places if place in (1, places[-1])}):
            behind = chunk[0][place:] or (following[0] if following else "")
            if _is_end(chunk[0][:place], behind):
                yield chunk.start() + place


def _is_end(before: str, behind: str) -> bool:
    """Whether a sentence ends between the two, of which the first ends in a mark."""
    if "?" in before or "!" in before:
        return True
    word = _APART.split(before)[-1].lstrip("-,")
    following = found[0] if (found := _WORD.match(behind)) else ""
    if _INITIAL.fullmatch(word) and (_INITIAL.match(behind) or word[0].lower() in _SHORT):
        return False
    if _NUMBER.fullmatch(word) or _INITIAL.fullmatch(word):
        return not following[:1].islower() and behind[0] not in ":;,.?!"
    name = word[:-1].lower()
    if _ELLIPSIS.search(word) or name in _SHORT or name.split("-")[-1] in _SHORT:
        return following[:1].isupper() and following.lower() in _STARTERS
    return True
