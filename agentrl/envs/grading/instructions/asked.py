"""The instructions of IFBench that ask one question, with an answer of one shape:
https://arxiv.org/abs/2507.02833, appendix."""

import csv
import re
import string
import unicodedata
from itertools import pairwise

from agentrl.envs.grading.instructions.checks import checks
from agentrl.envs.grading.instructions.texts import EDGES, bare, sentences

#: Capitals of Europe north of 45 degrees, from north to south.
_CAPITALS = """
Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau
Bern Ljubljana Zagreb
"""
_OPTION = re.compile(r"[A-Ea-e][.)]\s*\w")
_SPECIAL = re.compile(r'"[^"]*[^\w\s"][^"]*"')


def plain(text: str) -> str:
    """Without accents, and what else is not ASCII."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def table(text: str, separator: str) -> list[list[str]]:
    """Rows and their fields, with the quotes around them; a separator between quotes is none."""
    outside = re.compile(rf'{separator}(?=(?:[^"]*"[^"]*")*[^"]*$)')
    return [[f.strip() for f in outside.split(line)] for line in text.strip().splitlines()]


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
    try:
        rows = list(csv.reader(text.strip().splitlines()))
    except csv.Error:  # such as a field that is too long, of a quote that nothing closes
        return False
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
    """14 rows under a head, with a special character in a field between quotes."""
    head, *rows = table(text, ",")
    names = [field.strip('"') for field in head]
    if names != ["ProductID", "Category", "Brand", "Price", "Stock"] or len(rows) != 14:
        return False
    fields = [field for row in rows for field in row]
    return all(len(row) == 5 for row in rows) and any(map(_SPECIAL.fullmatch, fields))


@checks("custom:csv_quotes")
def csv_quotes(text: str) -> bool:
    """3 rows under a head, between tabs, with quotes around every field."""
    rows = table(text, "\t")
    names = [field.strip('"') for field in rows[0]]
    if names != ["StudentID", "Subject", "Grade", "Semester", "Score"] or len(rows) != 4:
        return False
    quoted = re.compile('"[^"]*"')
    return all(len(row) == 5 and all(map(quoted.fullmatch, row)) for row in rows)


@checks("custom:european_capitals_sort")
def european_capitals_sort(text: str) -> bool:
    return [name.strip() for name in plain(text).split(",") if name.strip()] == _CAPITALS.split()


@checks("custom:mcq_count_length")
def mcq_count_length(text: str) -> bool:
    """Four questions, each longer than the one before it, with five options each, and nothing
    before them."""
    before, *questions = re.split(r"Question \d+[.):;]?", text)
    if before or len(questions) != 4:
        return False
    lengths = []
    for question in questions:
        lines = [line.strip() for line in question.splitlines()]
        options = [place for place, line in enumerate(lines) if _OPTION.match(line)]
        if len(options) != 5:
            return False
        lengths.append(len(" ".join(lines[: options[0]]).strip()))
    return all(shorter < longer for shorter, longer in pairwise(lengths))


@checks("custom:reverse_newline")
def reverse_newline(text: str) -> bool:
    """Countries of Africa, of which there are 54, from Z to A; what stands above Zimbabwe is no
    part of them, and two may be lacking."""
    lines = [bared for line in text.splitlines() if (bared := line.strip(EDGES))]
    start = next((place for place, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = list(map(plain, lines[start:]))
    return len(names) >= 52 and names == sorted(names, reverse=True)


@checks("custom:word_reverse")
def word_reverse(text: str) -> bool:
    """Words from the last to the first: they name the bald eagle when they are turned round."""
    return "bald eagle" in " ".join(reversed(bare(text.lower()).split()))
