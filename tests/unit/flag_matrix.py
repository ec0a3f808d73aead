"""What every flag of `RunConfig` does in every mode: accepted, or refused, and what the user reads.

    python -m tests.unit.flag_matrix            print what differs from flag_matrix.tsv
    python -m tests.unit.flag_matrix --write    replace flag_matrix.tsv (each changed line belongs
                                                into the CHANGELOG)

A line is flags, mode, answer and text, with tabs between them. The text of an accepted flag is the
notes that the mode alone does not bring, but for the one that the mode gives the flag too. Nothing
here depends on the host: the device is the CPU.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.command_line import Program
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.toml import write_config
from agentrl.errors import AgentRLError
from agentrl.rollout_file import Rollouts, write_rollouts
from agentrl.types import LeaseHeader
from tests.unit.flag_values import TOGETHER, VALUES

__all__ = ["FILE", "MODES", "Ground", "lines"]

FILE = Path(__file__).with_name("flag_matrix.tsv")
_ANY = "--hf-checkpoint MODEL --device cpu --run-dir TMP/runs"
_ACTING = f"{_ANY} --env search-r1-local --rollout-max-response-len 64"
_TRAINED = f"{_ACTING} --n-samples-per-prompt 4"
MODES: dict[str, tuple[Program, str]] = {
    "train_async": ("train_async", _TRAINED),
    "train": ("train", _TRAINED),
    "sft": ("train_async", f"{_ANY} --loss-type sft_loss --prompt-data ROWS"),
    "eval": ("train_async", f"{_ACTING} --eval-only"),
    "plays": ("train_async", f"{_TRAINED} --debug-rollout-only"),
    "loads": ("train_async", f"{_TRAINED} --load-debug-rollout-data ROLLOUTS"),
    "resume": ("train_async", "--resume RUN --device cpu"),
}


class Ground:
    """Files that the flags name, in `folder`, under the short names that stand in the table."""

    def __init__(self, folder: Path) -> None:
        model = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
        self.names = {
            "MODEL2": folder / "model",
            "MODEL": model,
            "ROLLOUTS": folder / "saved.rollouts",
            "ROWS2": folder / "more.jsonl",
            "ROWS": folder / "rows.jsonl",
            "RUN": folder / "begun",
            "SETS": folder / "sets.toml",
            "MIX": folder / "mix.toml",
            "GROUPS": folder / "groups.yaml",
            "NAMES": folder / "names.yaml",
            "TMP": folder,
        }
        (folder / "model").symlink_to(model)
        for rows in ("ROWS", "ROWS2"):
            self.names[rows].write_text('{"input": "q", "question": "q", "answer": "a"}\n')
        self.names["SETS"].write_text(
            f'[[datasets]]\nname = "held"\npath = "{self.names["ROWS2"]}"\ntemperature = 0.3\n'
        )
        self.names["MIX"].write_text(
            f'[[parts]]\nname = "asked"\nprompt_data = "{self.names["ROWS2"]}"\nmax_turns = 2\n'
            f'eval = [{{name = "held", path = "{self.names["ROWS2"]}"}}]\n'
        )
        self.names["GROUPS"].write_text(
            "sglang: [{name: default, server_groups: [{worker_type: regular, num_gpus: 2}, "
            "{worker_type: regular, num_gpus: 1, overrides: {max_running_requests: 4}}]}]\n"
        )
        self.names["NAMES"].write_text("mis_level: token\n")
        write_rollouts(self.names["ROLLOUTS"], Rollouts(LeaseHeader(1, []), []), lambda _: ())
        (folder / "begun").mkdir()
        begun = parse(self.words(_TRAINED), "train_async").config
        write_config(folder / "begun" / "config.toml", begun)
        (folder / "begun" / "ledger.db").touch()

    def words(self, text: str) -> list[str]:
        """The words of a command line, with the real paths."""
        return [self.real(word) for word in text.split()]

    def shown(self, text: str) -> str:
        """`text` with the short names, on one line."""
        for name, path in self.names.items():
            text = text.replace(str(path), name)
        return json.dumps(text.replace(str(Path.cwd()), "HERE"), ensure_ascii=False)[1:-1]

    def real(self, word: str) -> str:
        """A word with the real path of the short name that it begins with."""
        head, slash, tail = word.partition("/")
        return str(self.names[head]) + slash + tail if head in self.names else word


def given() -> Iterator[str]:
    """Every flag alone, then those that belong together."""
    from agentrl.config.fields import own_fields

    for name, field in own_fields().items():
        if field.kind == "bool":
            yield field.flag
            yield field.flag.replace("--", "--no-", 1)
        else:
            yield f"{field.flag} {VALUES[name]}"
    yield from TOGETHER


def lines() -> Iterator[str]:
    """The table, line by line."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder).resolve())
        usual = {mode: _answer(ground, mode, "")[1] for mode in MODES}
        for flags in given():
            for mode in MODES:
                answer, said = _answer(ground, mode, flags)
                if answer == "accepted":
                    said = [n for n in said if n not in usual[mode] and " times: " not in n]
                yield "\t".join((flags, mode, answer, ground.shown("\n".join(said)))).rstrip()


def _answer(ground: Ground, mode: str, flags: str) -> tuple[str, list[str]]:
    program, base = MODES[mode]
    try:
        notes = parse([*ground.words(base), *ground.words(flags)], program).notes
    except AgentRLError as error:
        return "refused", [str(error)]
    return "accepted", notes


def _main() -> int:
    now = list(lines())
    if "--write" in sys.argv:
        FILE.write_text("\n".join(now) + "\n")
        return 0
    kept = FILE.read_text().splitlines()
    changes = [f"- {line}" for line in kept if line not in now]
    changes += [f"+ {line}" for line in now if line not in kept]
    sys.stdout.write("".join(f"{line}\n" for line in sorted(changes, key=lambda line: line[2:])))
    return bool(changes)


if __name__ == "__main__":
    sys.exit(_main())
