"""What `hf download` would bring, made: models of their published shape without numbers, and rows
of the published form."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from scripts.slime_scripts.made_ground import Ground

__all__ = ["CACHE", "download"]

#: The cache of the hub, below the current directory.
CACHE = Path("hub")
_MATHS = {"prompt": [{"role": "user", "content": "What is 2 + 2?"}], "label": "4"}
_ASKED = {"question": "Who wrote Hamlet?", "golden_answers": ["Shakespeare"]}
_SCHOOL = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "label": "4"}
_CHOSEN = _MATHS | {"label": "B", "metadata": {"choices": ["3", "4"], "correct_letter": "B"}}
_KEPT = {"prompt": "Say yes.", "metadata": {"instruction_id_list": ["punctuation:no_comma"]}}
#: A row of each data set, by its name on the hub, and the files that hold such rows.
_DATA: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "zhuzilin/dapo-math-17k": (_MATHS, ("dapo-math-17k.jsonl",)),
    "zhuzilin/aime-2024": (_MATHS, ("aime-2024.jsonl",)),
    "zhuzilin/gsm8k": (_SCHOOL, ("train.parquet", "test.parquet")),
    "zyzshishui0627/gpqa_diamond": (_CHOSEN, ("gpqa_eval.jsonl",)),
    "zyzshishui0627/IFBench": (_KEPT, ("IFBench_eval.jsonl",)),
    "PeterJinGo/nq_hotpotqa_train": (_ASKED, ("train.parquet", "test.parquet")),
}


def download(name: str, folder: Path | None) -> None:
    """Make the model `name` in the cache, or with a `folder` the data set there."""
    if folder is None:
        _model(name)
        return
    row, files = _DATA[name]
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        rows = [row] * 8
        if file.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / file)
        else:
            (folder / file).write_text("".join(f"{json.dumps(each)}\n" for each in rows))


def _model(name: str) -> None:
    place = CACHE / f"models--{name.replace('/', '--')}"
    Ground(place.absolute()).placed(["--hf-checkpoint", "/snapshots/made"])
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("made")
