"""Converts and measures: `little_memory.py SMALL LARGE FOLDER FILE_BYTES`.

Of the model SMALL first, so that all is imported and warm; then the model LARGE from one form into
the other, in that form, and back into files of so many bytes. Prints the most memory of its own, in
bytes, that the process had beside what it had by then; what it maps from files does not count.
"""

import re
import sys
import threading
from pathlib import Path

from agentrl.learner.megatron.convert import convert


def main(small: Path, large: Path, folder: Path, file_bytes: int) -> None:
    _there_and_back(small, folder, file_bytes)
    before, seen, is_over = _own_bytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.001):
            seen.append(_own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        _there_and_back(large, folder, file_bytes)
    finally:
        is_over.set()
        watcher.join()
    sys.stdout.write(f"{max(seen) - before}\n")


def _there_and_back(model: Path, folder: Path, file_bytes: int) -> None:
    first, second, back = (folder / f"{model.name}-{name}" for name in ("first", "second", "hf"))
    convert(model, first, model, "torch_dist")
    convert(first, second, model, "torch_dist")
    convert(second, back, model, "hf", max_file_bytes=file_bytes)


def _own_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
