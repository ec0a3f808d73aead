"""The instructions of IFEval: https://arxiv.org/abs/2311.07911, table 1."""

import json
import re
from collections import Counter
from collections.abc import Sequence

from agentrl.envs.grading.enclosed import enclosed
from agentrl.envs.grading.instructions.checks import checks, compared
from agentrl.envs.grading.instructions.texts import sentences, tokens, words

_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")


@checks("keywords:existence")
def existence(text: str, keywords: Sequence[str]) -> bool:
    return all(re.search(word, text, re.I) for word in keywords)


@checks("keywords:frequency")
def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return compared(len(re.findall(keyword.strip(), text, re.I)), relation, frequency)


@checks("keywords:forbidden_words")
def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.I) for word in forbidden_words)


@checks("keywords:letter_frequency")
def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compared(Counter(text.lower())[letter.lower()], let_relation, let_frequency)


@checks("length_constraints:number_sentences")
def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compared(len(sentences(text)), relation, num_sentences)


@checks("length_constraints:number_words")
def number_words(text: str, num_words: int, relation: str) -> bool:
    return compared(len(words(text)), relation, num_words)


@checks("length_constraints:number_paragraphs")
def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Paragraphs are parted by three stars; none between two others is empty."""
    found = re.split(r"\s?\*\*\*\s?", text)
    inner = found[1:-1]
    if not all(paragraph.strip() for paragraph in inner):
        return False
    return sum(bool(paragraph.strip()) for paragraph in found) == num_paragraphs


@checks("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(
    text: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    found = text.split("\n\n")
    num = sum(bool(paragraph.strip()) for paragraph in found)
    if nth_paragraph > num or not (paragraph := found[nth_paragraph - 1].strip()):
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    first = re.split(r"[.,?!'\"]", word)[0].lower()
    return num == num_paragraphs and first == first_word.lower()


@checks("detectable_content:number_placeholders")
def number_placeholders(text: str, num_placeholders: int) -> bool:
    found = sum(len(list(enclosed(line, "[", "]"))) for line in text.split("\n"))
    return found >= num_placeholders


@checks("detectable_content:postscript")
def postscript(text: str, postscript_marker: str) -> bool:
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    marker = postscript_marker.strip()
    pattern = patterns.get(marker, marker.lower())
    return re.search(pattern, text.lower()) is not None


@checks("detectable_format:number_bullet_lists")
def number_bullet_lists(text: str, num_bullets: int) -> bool:
    stars = re.findall(r"^[^\S\n]*\*[^\*].*$", text, re.M)
    return len(stars) + len(re.findall(r"^[^\S\n]*-.*$", text, re.M)) == num_bullets


@checks("detectable_format:constrained_response")
def constrained_response(text: str) -> bool:
    return any(answer in text for answer in _ANSWERS)


@checks("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    found = [each.strip("*") for each in re.findall(r"\*[^\n\*]*\*", text)]
    found += [each[2:-2] for each in re.findall(r"\*\*[^\n\*]*\*\*", text)]
    return sum(bool(each.strip()) for each in found) >= num_highlights


@checks("detectable_format:multiple_sections")
def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{section_spliter.strip()}\s?\d+", text)) >= num_sections


@checks("detectable_format:json_format")
def json_format(text: str) -> bool:
    inner = text.strip()
    for fence in _FENCES:
        inner = inner.removeprefix(fence)
    try:
        json.loads(inner.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@checks("detectable_format:title")
def title(text: str) -> bool:
    """A line holds one title at most: from its first `<<` to its last `>>`."""
    found = ((line, line.find("<<"), line.rfind(">>")) for line in text.split("\n"))
    return any(
        line[start:end].lstrip("<").rstrip(">").strip()
        for line, start, end in found
        if 0 <= start < end
    )


@checks("combination:two_responses")
def two_responses(text: str) -> bool:
    """Two that differ, parted by six stars."""
    found = text.split("******")
    if not all(each.strip() for each in found[1:-1]):
        return False
    kept = [each.strip() for each in found if each.strip()]
    return len(kept) == 2 and kept[0] != kept[1]


@checks("combination:repeat_prompt")
def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@checks("startend:end_checker")
def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@checks("startend:quotation")
def quotation(text: str) -> bool:
    inner = text.strip()
    return len(inner) > 1 and inner[0] == inner[-1] == '"'


@checks("change_case:capital_word_frequency")
def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return compared(
        sum(each.isupper() for each in tokens(text)), capital_relation, capital_frequency
    )


@checks("punctuation:no_comma")
def no_comma(text: str) -> bool:
    return "," not in text
