"""The checks of `ifbench`: each instruction kept by one text and broken by another."""

import json
import string
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.grading.cell import RuleError
from agentrl.envs.grading.instructions.asked import csv_city
from agentrl.envs.grading.instructions.checks import CHECKS, is_kept
from agentrl.envs.grading.instructions.texts import sentences, tokens
from agentrl.envs.named import load_shipped
from agentrl.envs.rewards.ifbench import FAMILIES

pytestmark = pytest.mark.anyio

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures/ifbench_answers.jsonl").open()
][1:]
LESS, LEAST = "less than", "at least"
CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},a,b,1999,5" for n in range(7))
PALINDROMES = "level radar civic rotor kayak madam refer tenet stats solos"
KEYS = {f"keyword{n}": word for n, word in enumerate("vwxyz", 1)}
Z_UNDER_2 = {"letter": "z", "let_frequency": 2, "let_relation": LESS}
UNDER_2 = {"num_sentences": 2, "relation": LESS}
NO_CAPITAL = {"capital_frequency": 1, "capital_relation": LESS}
PRODUCTS = "\n".join(
    ["ProductID,Category,Brand,Price,Stock", *["1,a,b,2,3"] * 13, '1,"a, b",c,2,3']
)
STUDENT = "\t".join(['"1"'] * 5)
STUDENTS = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"' + f"\n{STUDENT}" * 3
CAPITALS = (
    "Reykjavík, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk,"
    " Dublin, Berlin, Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna,"
    " Bratislava, Budapest, Vaduz, Chișinău, Bern, Ljubljana, Zagreb"
)
OPTIONS = "\n".join(f"{letter}) {letter}" for letter in "ABCDE")
QUESTIONS = "\n".join(f"Question {n}: {'Who' * n}?\n{OPTIONS}" for n in range(1, 5))
COUNTRIES = "Here:\n" + "\n".join(["Zimbabwe", *(f"{n:02}. land" for n in range(60, 8, -1))])
ALPHABET = " ".join(f"{letter}x." for letter in string.ascii_uppercase)
#: id, arguments, a text that keeps it, and one that does not.
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("ratio:stop_words", {"percentage": 25}, "The cats sat still.", "Cats won't sit still."),
    ("keywords:existence", {"keywords": ["cat", "dog"]}, "A Cat and a dog.", "A cat."),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": LEAST}, "cat Cat", "cat"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", "a Cat!"),
    ("keywords:letter_frequency", Z_UNDER_2, "Z", "zZ"),
    ("length_constraints:number_sentences", UNDER_2, "One.", "Aa bb. Cc?"),
    ("length_constraints:number_words", {"num_words": 3, "relation": LEAST}, "a b c", "a b."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "well"},
        "a\n\n\"Well, b",
        "well\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\nP. S. y", "x PS y"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:constrained_response", {}, "So: My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*a*", "* *"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1 a SECTION 2 b",
        "SECTION a",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\nx", "<< >>"),
    ("combination:two_responses", {}, "a******b", "a******a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Do it"}, "do it: done", "done: do it"),
    ("startend:end_checker", {"end_phrase": "The end."}, "x the end.", "the end. x"),
    ("startend:quotation", {}, ' "a" ', '"a'),
    ("change_case:capital_word_frequency", NO_CAPITAL, "a", "A"),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b", "a b c d"),
    ("count:unique_word_count", {"N": 2}, "a b.", "a A."),
    ("count:conjunctions", {"small_n": 2}, "a and b, but c", "and and"),
    ("count:person_names", {"N": 2}, "Emma saw Leo", "Emma saw Emmas"),
    ("count:numbers", {"N": 2}, "1,000 and 3.5", "1 2 3"),
    ("count:punctuation", {}, "a, b; c: d. e! f? Really?!", "a, b; c: d. e! f?"),
    ("count:pronouns", {"N": 2}, "he/she", "Helen"),
    ("count:words_japanese", {"N": 2}, "a 猫 b 犬", "a b c d"),
    ("count:keywords_multiple", KEYS, "v" + "w" * 2 + "x" * 3 + "y" * 5 + "z" * 7, "v w x y z"),
    ("ratio:sentence_type", {}, "Aa. Bb. Cc?", "Aa. Bb?"),
    ("ratio:sentence_balance", {}, "Aa. Bb? Cc!", "Aa. Bb?"),
    ("ratio:overlap", {"reference_text": "abcxyz", "percentage": 50}, "abcd", "abc"),
    ("ratio:sentence_words", {}, "Aa. Bb? Cc!", "A. Bb. Cc."),
    ("words:alphabet", {}, "yes, zebras ate", "a c"),
    ("words:vowel", {}, "a e i bcd", "a e i o"),
    ("words:consonants", {}, "this thing", "this a"),
    ("words:palindrome", {}, PALINDROMES, PALINDROMES.replace("level", "noon")),
    ("words:prime_lengths", {}, "it was under", "that is"),
    ("words:repeats", {"small_n": 1}, "a b", "a A"),
    ("words:last_first", {}, "A cat. Cat naps.", "A cat. Dog."),
    ("words:paragraph_last_first", {}, "Cat is a cat.\n\nb", "a b\nc"),
    ("words:no_consecutive", {}, "a b a", "a And"),
    ("words:keywords_specific_position", {"keyword": "c", "n": 2, "m": 2}, "Aa. B, c.", "Aa. c."),
    ("words:words_position", {"keyword": "k"}, "a k and k b.", "a b k c."),
    ("sentence:alliteration_increment", {}, "One day. Big bad. Red rats run.", "Big bad. One day."),
    ("sentence:keyword", {"word": "cat", "N": 2}, "Aa. The Cat!", "A cat. Bb."),
    ("sentence:increment", {"small_n": 1}, "Aa. B cc. D e ff.", "Aa. Bb."),
    ("format:parentheses", {}, "(a [b {c (d [e])}])", "((((a))))"),
    ("format:quotes", {}, "\"a 'b \"c\" d' e\"", "\"a 'b' c\""),
    ("format:options", {"options": "yes/no/maybe"}, "Yes.", "yes, sure"),
    ("format:newline", {}, "a\nb\n\nc", "a b"),
    ("format:line_indent", {}, "a\n b\n\n  c", "a\nb"),
    ("format:quote_unquote", {}, 'He says "a" and means b.', 'He says "a"'),
    ("format:list", {"sep": "..."}, "...a\n...b", "...a"),
    ("format:thesis", {}, "<i>So it is.</i> For this.", "<i> </i> x"),
    ("format:sub-bullets", {}, "* a\n - b\n* c\n - d", "* a\n - b\n* c"),
    ("format:no_bullets_bullets", {}, "Aa. Bb.\n* c\n* d", "Aa.\n* c\n* d"),
    ("format:title_case", {}, "The Cat In A Hat", "The cat"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer:"),
    ("format:no_whitespace", {}, "abc", "a b"),
    ("format:emoji", {}, "Good 😀. Bad 😢!", "Good 😀. Bad."),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests.", "x"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Do it now"}, "See it now", "Do it now"),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "Do it here and now", "n_start": 1, "n_end": 3},
        "It here and",
        "it here",
    ),
    ("custom:multiples", {}, "14,21,28,35,42,49", "14, 21"),
    ("custom:character_reverse", {}, "elgae dlab eht", "bald eagle"),
    ("custom:sentence_alphabet", {}, ALPHABET, "A."),
    ("custom:csv_city", {}, CITIES, CITIES.replace("Year", "When")),
    ("custom:csv_special_character", {}, PRODUCTS, PRODUCTS.replace('"a, b"', "a-b")),
    ("custom:csv_quotes", {}, STUDENTS, STUDENTS.replace('"Score"', "Score")),
    ("custom:european_capitals_sort", {}, CAPITALS, CAPITALS.replace("Oslo, ", "")),
    ("custom:mcq_count_length", {}, QUESTIONS, QUESTIONS.replace("E) E", "", 1)),
    ("custom:reverse_newline", {}, COUNTRIES, COUNTRIES.replace("60. land", "07. land")),
    ("custom:word_reverse", {}, "eagle. bald the is It", "It is the bald eagle."),
    ("custom:date_format_list", {}, "1769-08-15, 1821-05-05", "1769-08-32"),
]  # fmt: skip


def test_every_check_is_tried() -> None:
    assert FAMILIES
    assert [case[0] for case in CASES if case[0] not in CHECKS] == []
    assert CHECKS.keys() - {case[0] for case in CASES} == set()


@pytest.mark.parametrize(("instruction", "told", "kept", "broken"), CASES)
def test_a_text_keeps_an_instruction_or_breaks_it(
    instruction: str, told: dict[str, Any], kept: str, broken: str
) -> None:
    assert is_kept(instruction, kept, told)
    assert not is_kept(instruction, broken, told)
    assert not is_kept(instruction, " \n", told)


def test_sentences_are_cut_where_punkt_cuts_them() -> None:
    said = 'Dr. No saw U.S. law at 5 p.m. The end... is it? "Who?" he *said.* 3. So! J. K. was'
    assert sentences(said) == [
        "Dr. No saw U.S. law at 5 p.m.",
        "The end... is it?",
        '"Who?"',
        "he *said.",
        "* 3.",
        "So!",
        "J. K. was",
    ]


def test_tokens_are_those_of_the_penn_treebank() -> None:
    said = "I DON'T, she's; the U.S. 'n' \"they cannot\" pay $3,000.50 -- etc."
    assert tokens(said) == [
        *("I", "DO", "N'T", ",", "she", "'s", ";", "the", "U.S.", "'n", "'"),
        *("''", "they", "can", "not", "''", "pay", "$", "3,000.50", "--", "etc", "."),
    ]


def test_verdicts_are_those_of_the_published_checks() -> None:
    """On the list of `ifbench_answers.jsonl`, whose first line says how it was recorded: once, with
    the published checks and their packages. No script here makes it again."""
    assert {row["instruction"] for row in RECORDED} == CHECKS.keys() - {"ratio:stop_words"}
    for row in RECORDED:
        verdict = is_kept(row["instruction"], row["text"], row["kwargs"])
        assert verdict == row.get("ours", row["kept"]), row


def test_a_count_may_be_a_float_as_in_published_rows() -> None:
    told = {"prompt_to_repeat": "Do it here and now", "n_start": 1.0, "n_end": 3.0}
    assert is_kept("repeat:repeat_span", "it here and", told)
    assert is_kept("count:words_japanese", "a 猫 b 犬", {"N": 2.0})
    assert is_kept(
        "words:keywords_specific_position", "A. B c", {"keyword": "c", "n": 2.0, "m": 2.0}
    )


async def test_all_instructions_of_a_row_have_to_be_kept() -> None:
    metadata = {
        "instruction_id_list": ["punctuation:no_comma", "count:numbers"],
        "kwargs": [{"num_words": None}, {"N": 1}],
    }
    for text, worth in (("it is 5", 1.0), ("it is, 5", 0.0), ("it is", 0.0), ("", 0.0)):
        assert await load_shipped("ifbench")(text, None, {"metadata": metadata}) == worth


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "wants `instruction_id_list`"),
        ({"instruction_id_list": 5, "kwargs": 5}, "wants `instruction_id_list`, a list"),
        ({"instruction_id_list": ["count:numbers"], "kwargs": 5}, "wants N in its kwargs"),
        ({"instruction_id_list": ["words:start_verb"]},
         "no check of the instruction 'words:start_verb', which needs a trained tagger"),
        ({"instruction_id_list": ["words:vowels"]}, "did you mean words:vowel"),
        ({"instruction_id_list": ["count:numbers"]}, "count:numbers wants N in its kwargs"),
        (
            {"instruction_id_list": ["keywords:frequency"],
             "kwargs": [{"keyword": "a", "frequency": 1, "relation": "over"}]},
            "the relation 'over' is none of less than, at least",
        ),
    ],
)  # fmt: skip
async def test_a_row_that_cannot_be_checked_is_refused(metadata: Any, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        await load_shipped("ifbench")("a", None, {"metadata": metadata})


def test_a_quote_that_nothing_closes_is_no_table() -> None:
    assert not csv_city('ID,"' + "x" * 200_000)
