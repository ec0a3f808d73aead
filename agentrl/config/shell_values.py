"""What the words of a shell script stand for, as far as that is known without running it.

A value is pieces: text, and sources that only a shell can tell (`$BASE_DIR`), each with the reason.
`Fields` joins and parts them as a shell does: a value without quotes falls apart at its blanks.
Refused: values that grow without bound.
"""

import ast
import re
import shlex

import msgspec

from agentrl.errors import ConfigError

__all__ = [
    "Argument",
    "Array",
    "Fields",
    "ShellPiece",
    "Unset",
    "Value",
    "evaluated",
    "plain",
    "whole",
]

MAX_CHARACTERS = 1024 * 1024
_MAX_INTEGER = 2**63
#: A variable in what a shell is given, not one that has a value anyway (`${NAME:-4}`).
_VARIABLE = re.compile(r"(?<!\\)\$\{?[#!]?([A-Za-z_]\w*(?:\[[@*]\])?)(?!\w|:?[-=+])", re.ASCII)


class ShellPiece(msgspec.Struct, frozen=True):
    """Text; or, where it is not `known`, what a shell has to be given for it, and why. `many`: it
    stands for any number of words; `bare`: it has its quotes."""

    text: str
    known: bool = True
    why: str = ""
    many: bool = False
    bare: bool = False


Value = tuple[ShellPiece, ...]


class Array(msgspec.Struct, frozen=True):
    """The items of a list."""

    items: tuple[Value, ...]


class Unset(msgspec.Struct, frozen=True):
    """A variable whose value only a run can tell."""

    why: str


class Argument(msgspec.Struct, frozen=True):
    """A word for the program. Where it is not `known`, `text` is what a shell takes for it, with
    its quotes; `many`: it stands for any number of words. `whys`: what is not known of it.
    `needs`: the variables that a shell must have to fill it in, lists as `NAME[@]`."""

    text: str
    known: bool = True
    many: bool = False
    whys: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def plain(text: str) -> Value:
    """A text as a value."""
    return (ShellPiece(text),)


def whole(value: Value) -> str | None:
    """The text of a value; None where a part of it is not known."""
    known = all(piece.known for piece in value)
    return "".join(piece.text for piece in value) if known else None


class Fields:
    """The words that a shell makes of one, piece by piece."""

    def __init__(self) -> None:
        self._done: list[list[tuple[ShellPiece, bool]]] = []
        self._open: list[tuple[ShellPiece, bool]] | None = None
        self._size = 0

    def add(self, value: Value, *, quoted: bool) -> None:
        """Go on with a value. Without quotes it begins new words at its blanks."""
        self._size += 1 + sum(len(piece.text) for piece in value)
        if self._size > MAX_CHARACTERS:
            raise ConfigError(f"a word has more than {MAX_CHARACTERS} characters")
        if quoted:
            self._open = self._open or []
            self._open.extend((piece, True) for piece in value)
            return
        for piece in value:
            texts = re.split(r"[ \t\n]+", piece.text) if piece.known else [piece.text]
            for index, text in enumerate(texts):
                if index:
                    self.part()
                if text:
                    self._open = self._open or []
                    self._open.append((msgspec.structs.replace(piece, text=text), False))

    def part(self) -> None:
        """The word that is open ends."""
        if self._open is not None:
            self._done.append(self._open)
        self._open = None

    def arguments(self) -> list[Argument]:
        """The words."""
        self.part()
        return [_argument(field) for field in self._done]

    def values(self) -> tuple[Value, ...]:
        """The words as values."""
        self.part()
        return tuple(_settled(field) for field in self._done)


def _argument(field: list[tuple[ShellPiece, bool]]) -> Argument:
    value = _settled(field)
    text = whole(value)
    if text is not None:
        return Argument(text)
    many = any(piece.many for piece in value)
    whys = tuple(piece.why for piece in value if not piece.known)
    needs = dict.fromkeys(
        name for piece in value if not piece.known for name in _VARIABLE.findall(piece.text)
    )
    return Argument(_source(value), known=False, many=many, whys=whys, needs=tuple(needs))


def _settled(field: list[tuple[ShellPiece, bool]]) -> Value:
    """A word: with its quotes where it is not known."""
    loose = "".join(piece.text for piece, quoted in field if piece.known and not quoted)
    if re.search(r"[*?]|\[.*\]", loose, re.DOTALL) and all(piece.known for piece, _ in field):
        source = "".join(
            shlex.quote(piece.text) if quoted else _pattern(piece.text) for piece, quoted in field
        )
        why = f"{source} is a pattern of file names"
        return (ShellPiece(source, known=False, why=why, bare=True),)
    return tuple(
        piece
        if piece.known or piece.bare
        else msgspec.structs.replace(
            piece, text=f'"{piece.text}"' if quoted else piece.text, bare=True
        )
        for piece, quoted in field
    )


def _pattern(text: str) -> str:
    return re.sub(r"([^\w@%+=:,./*?\[\]-])", r"\\\1", text)


def _source(value: Value) -> str:
    text = ""
    for piece in value:
        more = shlex.quote(piece.text) if piece.known else piece.text
        # `$NAME` may not take what follows into its name.
        open_name = re.search(r"\$([A-Za-z_]\w*)$", text, re.ASCII)
        if open_name and re.match(r"[\w\[]", more, re.ASCII):
            text = f"{text[: open_name.start()]}${{{open_name[1]}}}"
        text += more
    return text


def evaluated(text: str) -> int | None:
    """A sum of whole numbers, as a shell computes it; None for anything else."""
    if len(text) > 1000 or re.search(r"\b0[\dxX]|\*\*|//", text):
        return None
    try:
        return _sum(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _sum(node: ast.expr) -> int:
    found: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = -_sum(node.operand)
    elif isinstance(node, ast.BinOp):
        left, right = _sum(node.left), _sum(node.right)
        sign = 1 if (left < 0) == (right < 0) else -1
        match node.op:
            case ast.Add():
                found = left + right
            case ast.Sub():
                found = left - right
            case ast.Mult():
                found = left * right
            case ast.Div():  # towards zero
                found = abs(left) // abs(right) * sign
            case ast.Mod():  # with the sign of what is divided
                found = abs(left) % abs(right) * (-1 if left < 0 else 1)
    if found is None or not -_MAX_INTEGER < found < _MAX_INTEGER:
        raise ValueError
    return found
