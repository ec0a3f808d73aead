"""The instructions of IFBench that ask one question, with an answer of one shape:
https://arxiv.org/abs/2507.02833, appendix."""

import csv
import io
import re
import string
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from agentrl.envs.grading.instructions.checks import checks
from agentrl.envs.grading.instructions.texts import EDGES, bare, sentences

#: Capitals of Europe north of 45 degrees, from north to south.
_CAPITALS = """
Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau
Bern Ljubljana Zagreb
"""
_QUESTION = re.compile(r"Question \d+[.|):;]?")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_SPECIAL = re.compile(r'".*[^\w\s].*"')


def plain(text: str) -> str:
    """Without accents, and what else is not ASCII."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def table(text: str, separator: str) -> list[list[str]]:
    """Rows of CSV and their fields, an empty line being a row without any; no row where it cannot
    be read, such as for a field that is too long, of a quote that nothing closes."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=separator))
    except csv.Error:
        return []


def quoted(text: str, separator: str) -> list[list[str]]:
    """The same, with the quotes around fields kept."""
    return table(text.replace('"', '"""'), separator)


def is_head(text: str, separator: str, names: Sequence[str]) -> bool:
    """Whether the first line holds these names, each in quotes or not."""
    pattern = separator.join(f'(?:{name}|"{name}")' for name in names)
    return re.fullmatch(pattern, text.split("\n")[0].strip()) is not None


@checks("custom:multiples")
def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == [str(n) for n in range(14, 51, 7)]


@checks("custom:character_reverse")
def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


@checks("custom:sentence_alphabet")
def sentence_alphabet(text: str) -> bool:
    firsts = [sentence.strip()[:1].lower() for sentence in sentences(text)]
    return firsts == list(string.ascii_lowercase)


@checks("custom:csv_city")
def csv_city(text: str) -> bool:
    rows = table(text, ",")
    head = ["ID", "Country", "City", "Year", "Count"]
    return len(rows) == 8 and rows[0] == head and all(len(row) == 5 for row in rows)


@checks("custom:date_format_list")
def date_format_list(text: str) -> bool:
    """Days of Napoleon's life, 1769 to 1821, as YYYY-MM-DD."""
    days = {**dict.fromkeys((4, 6, 9, 11), 30), 2: 29}
    for date in text.strip().split(","):
        found = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", date.strip())
        if not found:
            return False
        year, month, day = map(int, found.groups())
        if not 1769 <= year <= 1821 or month > 12 or (month and day > days.get(month, 31)):
            return False
    return True


@checks("custom:csv_special_character")
def csv_special_character(text: str) -> bool:
    """14 rows under a head, with a special character in a field between quotes; rows behind the
    first such field are not looked at, as published."""
    names = ["ProductID", "Category", "Brand", "Price", "Stock"]
    rows = quoted(text, ",")
    if len(rows) != 15 or not is_head(text, r",[ \t]*", names):
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(map(_SPECIAL.match, row)):
            return True
    return False


@checks("custom:csv_quotes")
def csv_quotes(text: str) -> bool:
    """3 rows under a head, between tabs, with quotes around every field."""
    names = ["StudentID", "Subject", "Grade", "Semester", "Score"]
    rows = quoted(text, "\t")
    if len(rows) != 4 or not is_head(text, r"\t *", names):
        return False
    fields = [field.strip() for row in rows for field in row]
    return all(len(row) == 5 for row in rows) and all(
        field[:1] == field[-1:] == '"' for field in fields
    )


@checks("custom:european_capitals_sort")
def european_capitals_sort(text: str) -> bool:
    return [name.strip() for name in plain(text).split(",") if name.strip()] == _CAPITALS.split()


@checks("custom:mcq_count_length")
def mcq_count_length(text: str) -> bool:
    """Four questions, each longer than the one before it, with five options each, and nothing
    before the first."""
    questions = [each.strip() for each in _QUESTION.split(text) if each.strip()]
    if not text.startswith("Question") or len(questions) != 4:
        return False
    lengths = []
    for question in questions:
        lines = [line.strip() for line in question.split("\n")]
        options = [place for place, line in enumerate(lines) if _OPTION.match(line)]
        if len(options) != 5:
            return False
        lengths.append(len(" ".join(lines[: options[0]]).strip()))
    return all(shorter < longer for shorter, longer in pairwise(lengths))


@checks("custom:reverse_newline")
def reverse_newline(text: str) -> bool:
    """Countries of Africa, of which there are 54, from Z to A; what stands above Zimbabwe is no
    part of them, and two may be lacking."""
    lines = [bared for line in text.split("\n") if (bared := line.strip(EDGES))]
    start = next((place for place, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = list(map(plain, lines[start:]))
    return len(names) >= 52 and names == sorted(names, reverse=True)


@checks("custom:word_reverse")
def word_reverse(text: str) -> bool:
    """Words from the last to the first: they name the bald eagle when they are turned round."""
    return "bald eagle" in " ".join(reversed(bare(text.lower()).split()))
