"""Compare what the reader of launch scripts finds in a checkout of slime with what was recorded.

python scripts/slime_scripts/compare.py CHECKOUT
"""

import argparse
import json
import re
from pathlib import Path

from agentrl.config.launch_script import LaunchScript, read_script
from agentrl.errors import ConfigError

RECORD = Path(__file__).resolve().parents[2] / "tests/fixtures/slime_scripts.json"


def main() -> None:
    """Print what disagrees, and how many agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout.resolve()
    scripts: dict[str, list[list[str]]] = {}
    for row in json.loads(RECORD.read_text())["scripts"]:
        if row["path"].endswith(".sh"):
            scripts.setdefault(row["path"], []).append(row["argv"])
    agree = 0
    for path, recorded in scripts.items():
        try:
            read = read_script(checkout / path)
        except ConfigError as error:
            print(f"{path}: {error}")
            continue
        if any(agrees(read, argv, str(checkout)) for argv in recorded):
            agree += 1
        else:
            print(f"{path}:\n  read     {read.argv}\n  recorded {recorded}")
        for line in read.broken:
            print(f"{path}: broken: {line}")
    print(f"{agree} of {len(scripts)} agree")


def agrees(read: LaunchScript, recorded: list[str], checkout: str) -> bool:
    """Whether the flags are those that were recorded, and so the words, where they are known."""
    if flags(read.argv) != flags(recorded):
        return False
    pattern = ""
    for argument in read.arguments:
        text = argument.text.replace(checkout, "/root/slime")
        pattern += re.escape(text) + "\0" if argument.known else r"(?:[^\0]*\0)*?"
    return re.fullmatch(pattern, "".join(word + "\0" for word in recorded)) is not None


def flags(words: list[str]) -> list[str]:
    """The flags among the words of a command, without their values."""
    return [word.partition("=")[0] for word in words if word.startswith("--")]


if __name__ == "__main__":
    main()
