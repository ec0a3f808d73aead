"""Make the values of `tests/fixtures/reward_answers.jsonl` again, by slime's own rewards.

    git clone https://github.com/THUDM/slime CHECKOUT && git -C CHECKOUT checkout COMMIT
    pip install --target FOLDER pylatexenc
    python -m scripts.reward_answers CHECKOUT --packages FOLDER [--write]

The first line of the list says the commit, and the sha256 of each file, which is looked at before
anything is run. Texts, labels and metadata stay as they are. Each value is found in a process of
its own; one that takes more than CPU_S seconds of a processor is `late`. Without `--write` values
that differ are shown, and the exit code is 1 where there are some.
"""

import argparse
import copy
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

LIST = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "reward_answers.jsonl"
#: Seconds of a processor, and bytes of memory, that a value may take.
CPU_S, MAX_BYTES = 10, 8 << 30
_BOXED = "boxed_"
_HUB = "slime/rollout/rm_hub"

Case = dict[str, Any]


def main() -> int:
    """Compare the list with what slime says, or write that into it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--packages", type=Path, help="a folder with what slime's rewards import")
    parser.add_argument("--write", action="store_true", help="write the values that differ")
    given = parser.parse_args()
    sys.path += [str(given.packages)] if given.packages else []
    head, *cases = map(json.loads, LIST.read_text().splitlines())
    _require(given.checkout, head["files"])
    _open_hub(given.checkout / _HUB)
    found = [judged(case) for case in cases]
    different = [pair for pair in zip(cases, found, strict=True) if pair[0] != pair[1]]
    for old, new in different:
        print(f"was {json.dumps(old)}\nis  {json.dumps(new)}")
    print(f"{len(cases)} answers, {len(different)} differ from the list")
    if given.write:
        LIST.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *found)))
    return int(bool(different) and not given.write)


def _require(checkout: Path, files: Mapping[str, str]) -> None:
    """Ends the program where the checkout has not the files of the list."""
    for name, digest in files.items():
        path = checkout / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"{path} is not the file of the list: check out the commit that {LIST} names")


def _open_hub(folder: Path) -> None:
    """The folder of slime's rewards as the package `hub`, without the imports of its own. Modules
    are imported here once, and not in the process of each value."""
    hub = types.ModuleType("hub")
    hub.__path__ = [str(folder)]
    sys.modules["hub"] = hub
    for name in ("math_utils", "deepscaler", "math_dapo_utils", "f1", "gpqa"):
        importlib.import_module(f"hub.{name}")


def judged(case: Case) -> Case:
    """The case with the value that slime's reward gives it, in a process of its own."""
    plain = {key: value for key, value in case.items() if key not in ("value", "late")}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _tell(writing, plain)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return {**plain, "late": True}
    if status:
        sys.exit(f"slime's reward ends with status {status} on {json.dumps(plain)}")
    return {**plain, "value": json.loads(said)}


def _tell(end: int, case: Case) -> NoReturn:
    """What the process of a value does: write it to `end`, and end."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        with os.fdopen(end, "w") as file:
            json.dump(value_of(case), file)
        code = 0
    finally:
        os._exit(code)


def value_of(case: Case) -> Any:
    """What slime's own reward gives the text of a case, called as its hub calls it."""
    text, label, name = case["text"], case["label"], case["rm_type"]
    if name.startswith(_BOXED):
        name = name.removeprefix(_BOXED)
        text = _function("math_utils", "extract_answer")(text) or ""
    if name == "math":
        return 1 if _function("math_utils", "grade_answer_verl")(text, label) else 0
    if name == "deepscaler":
        return _function("deepscaler", "get_deepscaler_rule_based_reward")(text, label)
    if name == "dapo":
        return _function("math_dapo_utils", "compute_score")(text, label)
    if name == "f1":
        return _function("f1", "f1_score")(text, label)[0]
    metadata = copy.deepcopy(case.get("metadata"))
    return _function("gpqa", "compute_gpqa_reward")(text, label, metadata=metadata)


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"hub.{module}"), name)


if __name__ == "__main__":
    sys.exit(main())
