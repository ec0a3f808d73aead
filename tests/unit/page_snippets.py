"""The pages of the documentation, and the commands and code blocks that stand in one."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)


class Snippet(NamedTuple):
    """A command, or a block of any other language; `name`: what a block is to be saved as."""

    line: int
    language: str
    text: str = ""
    name: str = ""


def snippets(page: str) -> Iterator[Snippet]:
    """Blocks, those of bash as their commands, and inline `agentrl SUB-COMMAND ARGUMENTS`."""
    begun: Snippet | None = None
    body: list[str] = []
    ticks = name = ""
    for number, line in enumerate(page.splitlines(), start=1):
        fence = re.match(r"\s*(```+|~~~)(.*)", line)
        if begun is not None:
            if line == ticks:
                yield from unpacked(begun._replace(text="\n".join(body) + "\n"))
                begun, name = None, ""
            body.append(line)
        elif fence is not None:
            ticks, language = fence.groups()
            if not line.startswith("```"):
                language = "a fence that is set in, or is not ```"
            begun, body = Snippet(number, language, name=name or f"block_{number}.py"), []
        else:
            name = (re.findall(r"[Ss]ave \w+ as `(\w+\.py)`", line) or [name])[-1]
            commands = re.findall(r"`(agentrl [a-z]+ [^`]+)`", line)
            for command in commands + re.findall(r"^ {4}(?=make|python|agentrl|\.venv)(.+)", line):
                yield Snippet(number, "command", re.sub(r"\b(RUN|MODEL)\b", "runs/ID", command))
    if begun is not None:
        yield begun._replace(language="a fence that nothing closes")


def unpacked(block: Snippet) -> Iterator[Snippet]:
    """A block of bash as its commands. A drawing or an output is nothing to check."""
    if block.language != "bash":
        yield from [] if block.language in ("", "text") else [block]
        return
    whole, start = "", 0
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        start = start if whole else number
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            if words_of(whole):
                yield Snippet(start, "command", whole)
            whole = ""


def words_of(command: str) -> list[str]:
    """Its words, operators of the shell apart; a comment goes to the end of the line."""
    code = re.sub(r"(^|\s)#[^'\"]*$", "", command)
    lexer = shlex.shlex(code, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    return list(lexer)
