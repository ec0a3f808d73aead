r"""LaTeX as plain text: `\frac{1}{2}\pi` is `1/2π`.

What a macro becomes is what the library pylatexenc 2.10 prints for it, which slime's math rewards
read answers with: a macro that is not known vanishes, and its groups stay. `plain_text` gives None
where that library gives up: a root of nothing, groups nested deeper than MAX_DEPTH.
"""

import re
import unicodedata

from agentrl.envs.grading.symbols import SYMBOLS

__all__ = ["MAX_DEPTH", "plain_text"]

#: Groups, environments and arguments within each other that are read.
MAX_DEPTH = 100

_FRACTIONS = frozenset({"frac", "nicefrac", "textfrac"})
#: Macros of which so many arguments are not shown.
_HIDDEN = dict.fromkeys(
    [
        "mbox",
        "hspace",
        "vspace",
        "label",
        "hphantom",
        "vphantom",
        "color",
        "pagecolor",
        "xrightarrow",
        "xleftarrow",
        "ensuremath",
        "textmd",
        "textsf",
        "texttt",
        "textup",
        "textcolor",
        "colorbox",
        "input",
        "include",
    ],
    1,
) | {"fcolorbox": 2}
_ACCENTS = {
    "bar": "\u0305",
    "vec": "\u20d7",
    "hat": "\u0302",
    "tilde": "\u0303",
    "dot": "\u0307",
    "ddot": "\u0308",
    "acute": "\u0301",
    "grave": "\u0300",
    "check": "\u030c",
    "breve": "\u0306",
    "not": "\u0338",
    "'": "\u0301",
    '"': "\u0308",
    "^": "\u0302",
    "`": "\u0300",
    "~": "\u0303",
    "=": "\u0304",
    ".": "\u0307",
    "H": "\u030b",
    "b": "\u0331",
    "c": "\u0327",
    "d": "\u0323",
    "k": "\u0328",
    "r": "\u030a",
    "u": "\u0306",
    "v": "\u030c",
}
_STYLES = {
    "mathbf": "BOLD",
    "mathit": "ITALIC",
    "mathsf": "SANS-SERIF",
    "mathbb": "DOUBLE-STRUCK",
    "mathtt": "MONOSPACE",
    "mathcal": "SCRIPT",
    "mathscr": "SCRIPT",
    "mathfrak": "FRAKTUR",
}
_MARKS = {",": " ", ":": " ", ";": " ", " ": " ", "-": "\xad", **{c: c for c in "#$%&_{}"}}
_SPECIALS = {"&": "   ", "~": "\xa0", "``": "“", "''": "”", "---": "—", "--": "–"}
_SPECIALS |= {"!`": "¡", "?`": "¿"}
_MATRICES = frozenset({"array", "pmatrix", "bmatrix", "smallmatrix", "psmallmatrix"})
_MATRICES |= {"bsmallmatrix"}
_EQUATIONS = frozenset(
    f"{name}{star}"
    for name in ("equation", "eqnarray", "align", "multline", "gather", "dmath")
    for star in ("", "*")
)
_TOKEN = re.compile(r"\\([A-Za-z]+)\s*|\\(.)|``|''|---?|!`|\?`|[{}&~]|\\$|[^\\{}&~`'!?-]+|.", re.S)
_SPACE = re.compile(r"\s+")
_DEGREE = re.compile(r"\s*\[[^\]]*\]")
_OPTION = re.compile(r"\*?(?:\s*\[[^\]]*\])?")
_COLUMNS = re.compile(r"\s*(?:\[[^\]]*\])?\s*\{[^}]*\}")
_NAME = re.compile(r"\s*\{([A-Za-z]+\*?)\}")


class _UnreadableError(Exception):
    """The text is not LaTeX that can be read."""


def plain_text(latex: str) -> str | None:
    """The text that the source prints; None where it cannot be read."""
    try:
        return _Reader(latex).text()
    except _UnreadableError:
        return None


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def text(self, closer: str = "") -> str:
        """What stands up to `closer`, or to the end."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _UnreadableError
        parts: list[str] = []
        while token := _TOKEN.match(self._source, self._at):
            self._at = token.end()
            if closer and token[0].startswith(closer):
                if closer == "\\end":
                    self._skip(_NAME)
                break
            parts.append(self._shown(token))
        self._depth -= 1
        return "".join(parts)

    def _shown(self, token: "re.Match[str]") -> str:
        if token[1]:
            return self._macro(token[1])
        if token[2]:
            return self._mark(token[2])
        if token[0] == "{":
            return self.text("}")
        return _SPECIALS.get(token[0], "" if token[0] in "}\\" else token[0])

    def _mark(self, mark: str) -> str:
        if mark == "\\":
            self._skip(_OPTION)
            return "\n"
        if mark in _ACCENTS:
            return self._accented(mark)
        if mark == "[":
            return _shown_apart(self.text("\\]"))
        return _MARKS.get(mark, "")

    def _macro(self, name: str) -> str:
        start = self._at
        if name in _FRACTIONS:
            over, under = self._argument(), self._argument()
            if over is None or under is None:
                self._at = start
                return "%s/%s"
            return f"{over}/{under}"
        if name == "sqrt":
            radicand = None
            if self._skip(_DEGREE) or not self._source.startswith("[", self._at):
                radicand = self._argument()
            if radicand is None:
                raise _UnreadableError
            return f"√({radicand})"
        if name in _ACCENTS:
            return self._accented(name)
        if name in _STYLES:
            return _styled(self._argument() or "", _STYLES[name])
        if name == "begin":
            return self._environment()
        if name in _HIDDEN:
            self._skip(_OPTION)
            for _ in range(_HIDDEN[name]):
                self._argument()
        if name == "end":
            self._skip(_NAME)
        return SYMBOLS.get(name, "")

    def _argument(self) -> str | None:
        """A group, a macro without arguments of its own, or one character; None at the end."""
        self._skip(_SPACE)
        token = _TOKEN.match(self._source, self._at)
        if token is None:
            return None
        if token[0] == "}":
            return ""
        if token[0] == "{":
            self._at = token.end()
            return self.text("}")
        if token[1] or token[2]:
            self._at = token.end()
            if token[1] == "sqrt":
                raise _UnreadableError
            if token[1] in _FRACTIONS:
                return "%s/%s"
            return SYMBOLS.get(token[1], "") if token[1] else _MARKS.get(token[2], "")
        self._at += 1
        return token[0][0]

    def _accented(self, name: str) -> str:
        shown = self._argument() or " "
        accent = _ACCENTS[name]
        return "".join(unicodedata.normalize("NFC", letter + accent) for letter in shown)

    def _environment(self) -> str:
        named = self._skip(_NAME)
        if named is None:
            return "\\begin"
        name = named[1]
        if name not in _MATRICES:
            shown = self.text("\\end")
            return _shown_apart(shown) if name in _EQUATIONS else shown
        if name == "array":
            self._skip(_COLUMNS)
        return _matrix(self.text("\\end"))

    def _skip(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        found = pattern.match(self._source, self._at)
        if found:
            self._at = found.end()
        return found


def _shown_apart(text: str) -> str:
    lines = "\n    ".join(line.strip() for line in text.strip().split("\n"))
    return f"\n    {lines}\n"


def _matrix(shown: str) -> str:
    rows = [
        [cell.strip() for cell in row.split(_SPECIALS["&"]) if cell]
        for row in shown.removesuffix("\n").split("\n")
    ]
    if not any(rows):
        raise _UnreadableError
    width = max(len(cell) for row in rows for cell in row)
    return "[ {} ]".format("; ".join(" ".join(cell.rjust(width) for cell in row) for row in rows))


def _styled(text: str, style: str) -> str:
    return "".join(_letter(each, style) for each in text)


def _letter(letter: str, style: str) -> str:
    """The letter as mathematics writes it in a style; elsewhere in Unicode, from there."""
    if not (letter.isascii() and letter.isalpha()):
        return letter
    case = "CAPITAL" if letter.isupper() else "SMALL"
    elsewhere = {"FRAKTUR": "BLACK-LETTER"}.get(style, style)
    for name in (f"MATHEMATICAL {style} {case} {letter}", f"{elsewhere} {case} {letter}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return "ℎ"  # of ITALIC SMALL H, which is Planck's constant
