"""The instructions of IFBench that count and shape: https://arxiv.org/abs/2507.02833, appendix."""

import re
import string
from collections import Counter
from itertools import pairwise

from agentrl.envs.grading.instructions.checks import checks
from agentrl.envs.grading.instructions.emojis import EMOJIS
from agentrl.envs.grading.instructions.texts import EDGES, bare, sentences, tokens, words

_CONJUNCTIONS = frozenset(["and", "but", "for", "nor", "or", "so", "yet"])
_NAMES = """
Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander
Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella
Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope
Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
"""
_PRONOUNS = """
i me we us you he him she her it they them my mine our ours your yours his hers its their theirs
myself ourselves yourself yourselves himself herself itself themselves this that these those who
whom whose which what whoever whomever whatever whichever anybody anyone anything everybody
everyone everything nobody nothing somebody someone something each either neither both all some
any none
"""
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_PAIRS = {")": "(", "]": "[", "}": "{"}
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_OPTIONS = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")


@checks("count:word_count_range")
def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(words(text)) <= max_words


@checks("count:unique_word_count")
def unique_word_count(text: str, N: int) -> bool:  # noqa: N803 - as the rows have it
    return len({word.strip(EDGES) for word in text.lower().split()}) >= N


@checks("count:conjunctions")
def conjunctions(text: str, small_n: int) -> bool:
    # a word counts once in each way that it is written, as published
    found = {word for word in text.split() if word.strip(EDGES).lower() in _CONJUNCTIONS}
    return len(found) >= small_n


@checks("count:person_names")
def person_names(text: str, N: int) -> bool:  # noqa: N803
    return sum(bool(re.search(rf"\b{name}\b", text)) for name in _NAMES.split()) >= N


@checks("count:numbers")
def numbers(text: str, N: int) -> bool:  # noqa: N803
    return len(re.findall(r"\d+", bare(text))) == N


@checks("count:punctuation")
def punctuation(text: str) -> bool:
    """Each of . , ! ? ; : beside an interrobang."""
    if not any(mark in text for mark in ("?!", "!?", "‽")):
        return False
    rest = text.replace("?!", "", 1) if "?!" in text else text.replace("!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


@checks("count:pronouns")
def pronouns(text: str, N: int) -> bool:  # noqa: N803
    return sum(word in _PRONOUNS.split() for word in tokens(text.lower().replace("/", " "))) >= N


@checks("count:words_japanese")
def words_japanese(text: str, N: int) -> bool:  # noqa: N803
    nth = (word.strip(EDGES) for word in text.split()[N - 1 :: N])
    return all(_JAPANESE.search(word) for word in nth if word and not word.isdigit())


@checks("count:keywords_multiple")
def keywords_multiple(
    text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    counts = [text.lower().count(keyword.strip().lower()) for keyword in keywords]
    return counts == [1, 2, 3, 5, 7]


@checks("ratio:sentence_type")
def sentence_type(text: str) -> bool:
    ends = Counter(sentence[-1] for sentence in sentences(text))
    return ends["."] == 2 * ends["?"]


@checks("ratio:sentence_balance")
def sentence_balance(text: str) -> bool:
    ends = Counter(sentence[-1] for sentence in sentences(text))
    return ends["."] == ends["?"] == ends["!"]


@checks("ratio:overlap")
def overlap(text: str, reference_text: str, percentage: float) -> bool:
    """Of the text's trigrams of characters, so many per cent, within 2, are the reference's."""
    own = {text[n : n + 3] for n in range(len(text) - 2)}
    other = {reference_text[n : n + 3] for n in range(len(reference_text) - 2)}
    share = 100 * len(own & other) / len(own) if own else -100.0
    return percentage - 2 <= share <= percentage + 2


@checks("ratio:sentence_words")
def sentence_words(text: str) -> bool:
    """Three sentences of one length."""
    lengths = [len(sentence.strip()) for sentence in sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1


@checks("words:alphabet")
def alphabet(text: str) -> bool:
    firsts = [word[0].lower() for word in bare(text).split()]
    if not firsts or firsts[0] not in string.ascii_lowercase:
        return False
    start = string.ascii_lowercase.index(firsts[0])
    wanted = (string.ascii_lowercase[(start + n) % 26] for n in range(len(firsts)))
    return all(first == letter for first, letter in zip(firsts, wanted, strict=True))


@checks("words:vowel")
def vowel(text: str) -> bool:
    """One paragraph with at most three of the vowels."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


@checks("words:consonants")
def consonants(text: str) -> bool:
    return all(re.search("[b-df-hj-np-tv-z]{2}", word) for word in text.lower().split())


@checks("words:palindrome")
def palindrome(text: str) -> bool:
    found = [word for word in bare(text).lower().split() if len(word) > 4 and word == word[::-1]]
    return len(found) >= 10


@checks("words:prime_lengths")
def prime_lengths(text: str) -> bool:
    return all(len(word) in _PRIMES for word in bare(text).split())


@checks("words:repeats")
def repeats(text: str, small_n: int) -> bool:
    return max(Counter(bare(text.lower()).split()).values(), default=0) <= small_n


@checks("words:last_first")
def last_first(text: str) -> bool:
    for one, other in pairwise(sentences(text)):
        last, first = one.rstrip(EDGES).split(), other.lstrip(EDGES).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


@checks("words:paragraph_last_first")
def paragraph_last_first(text: str) -> bool:
    paragraphs = (paragraph.strip().lower().strip(EDGES).split() for paragraph in text.split("\n"))
    return all(found[0] == found[-1] for found in paragraphs if found)


@checks("words:no_consecutive")
def no_consecutive(text: str) -> bool:
    return all(one[0] != other[0] for one, other in pairwise(bare(text.lower()).split()))


@checks("words:keywords_specific_position")
def keywords_specific_position(text: str, keyword: str, n: int, m: int) -> bool:
    """Word m of sentence n."""
    found = sentences(text)
    if len(found) < n:
        return False
    spoken = [token for token in tokens(found[n - 1]) if any(map(str.isalnum, token))]
    return len(spoken) >= m and spoken[m - 1].lower() == keyword.strip().lower()


@checks("words:words_position")
def words_position(text: str, keyword: str) -> bool:
    """The second word, and the last but one."""
    found = [token.lower() for token in tokens(text)]
    if found and found[-1] in string.punctuation:
        found.pop()
    return len(found) >= 2 and found[1] == found[-2] == keyword.strip().lower()


@checks("sentence:alliteration_increment")
def alliteration_increment(text: str) -> bool:
    before = -1
    for sentence in sentences(text):
        firsts = [word.lstrip(EDGES)[:1] for word in sentence.lower().split()]
        same = [one == other for one, other in pairwise(filter(None, firsts))]
        # a run of two words counts two, each further word one
        runs = sum(here and not was for was, here in pairwise([False, *same]))
        if (now := sum(same) + runs) <= before:
            return False
        before = now
    return True


@checks("sentence:keyword")
def keyword(text: str, word: str, N: int) -> bool:  # noqa: N803
    found = sentences(text)
    pattern = rf"\b{re.escape(word)}\b"
    return len(found) >= N and re.search(pattern, found[N - 1], re.I) is not None


@checks("sentence:increment")
def increment(text: str, small_n: int) -> bool:
    lengths = [len(bare(sentence).split()) for sentence in sentences(text)]
    return all(other == one + small_n for one, other in pairwise(lengths))


@checks("format:parentheses")
def parentheses(text: str) -> bool:
    """Brackets five deep, of which the innermost is closed."""
    opened: list[str] = []
    deepest = 0
    for char in text:
        if char in _PAIRS.values():
            opened.append(char)
            deepest = max(deepest, len(opened))
        elif char in _PAIRS:
            if not opened or opened.pop() != _PAIRS[char]:
                opened, deepest = [], 0
            elif deepest >= 5:
                return True
    return False


@checks("format:quotes")
def quotes(text: str) -> bool:
    """Quotes three deep, all closed again."""
    opened: list[str] = []
    deepest = 0
    for char in text:
        if opened and char == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= 3:
                return True
        elif char in "\"'":
            opened.append(char)
            deepest = max(deepest, len(opened))
    return False


@checks("format:options")
def options(text: str, options: str) -> bool:
    parted = "/" if "/" in options else "or" if "or" in options else ","
    allowed = [option.strip() for option in options.split(parted)]
    if _OPTIONS.match(options):
        return text in allowed
    return text.strip(EDGES).lower() in {option.strip(EDGES).lower() for option in allowed}


@checks("format:newline")
def newline(text: str) -> bool:
    lines = [line for line in bare(text).strip().split("\n") if line]
    return len(lines) == len(bare(text).split())


@checks("format:line_indent")
def line_indent(text: str) -> bool:
    """Each line further in than the one above; of empty lines one behind another, only each second
    is passed over, as published."""
    lines, place = text.split("\n"), 0
    while place < len(lines):
        if not lines[place].strip():
            lines.remove(lines[place])
        place += 1
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(one < other for one, other in pairwise(indents))


@checks("format:quote_unquote")
def quote_unquote(text: str) -> bool:
    """Words stand between two quotes, and after the last."""
    inner = "".join(text.replace("'\"'", "").split())
    if '""' in inner:
        return False
    return not inner.strip(string.digits + string.punctuation.replace('"', "")).endswith('"')


@checks("format:list")
def separators(text: str, sep: str) -> bool:
    return text.count(sep) >= 2


@checks("format:thesis")
def thesis(text: str) -> bool:
    """Something in italics of HTML, and something behind it. The marks have the length of `<i>`
    and `</i>`, as published: the rest of a longer one counts as text."""
    start = _either(text, "<i>", "<em>")
    end = _either(text[max(start, 0) :], "</i>", "</em>")
    if start < 0 or end < 0:
        return False
    inner, behind = text[start + 3 : start + end], text[start + end + 4 :]
    return bool(inner.strip()) and bool(behind.strip())


def _either(text: str, one: str, other: str) -> int:
    """Where one is, or else the other; -1 where neither is."""
    return text.find(one) if one in text else text.find(other)


@checks("format:sub-bullets")
def sub_bullets(text: str) -> bool:
    return all("-" in bullet for bullet in text.split("*")[1:])


@checks("format:no_bullets_bullets")
def no_bullets_bullets(text: str) -> bool:
    """Two sentences or more, then two bullets or more and nothing else; one line between them, and
    no other, may be empty."""
    lines = text.split("\n")
    marks = [line.strip().startswith("*") for line in lines]
    if True not in marks or not all(marks[marks.index(True) :]):
        return False
    above = lines[: marks.index(True)]
    if not all(line.strip() for line in above[:-1]):
        return False
    return sum(len(sentences(line)) for line in above) >= 2 and sum(marks) >= 2


@checks("format:title_case")
def title_case(text: str) -> bool:
    found = (word for word in tokens(text) if word[0].isalpha())
    return not any(word[0].islower() and (len(word) == 1 or _is_even(word[1:])) for word in found)


def _is_even(text: str) -> bool:
    return text.islower() or text.isupper()


@checks("format:output_template")
def output_template(text: str) -> bool:
    return all(head in text for head in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@checks("format:no_whitespace")
def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


@checks("repeat:repeat_simple")
def repeat_simple(text: str) -> bool:
    return text.strip().lower() == "only output this sentence here, ignore all other requests."


@checks("format:emoji")
def emoji(text: str) -> bool:
    """Each sentence ends in one, before or behind its last mark."""
    found = [bare(sentence).strip() for sentence in sentences(text)]
    for here, behind in pairwise([*found, ""]):
        if not here or EMOJIS.isdisjoint(here[-2:] + behind[:1]):
            return False
    return True


@checks("repeat:repeat_change")
def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """The request with another first word."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


@checks("repeat:repeat_span")
def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Words of the request, from one place to another, which is among them: the prompts of the
    published rows say words, where the published check counts characters."""
    span = " ".join(prompt_to_repeat.split()[n_start : n_end + 1])
    return text.strip().lower() == span.lower()
