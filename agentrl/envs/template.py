"""`env new`: an Env that works, to be changed into another."""

import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError

__all__ = ["write_template"]

_ENV = '''\
"""{title}: change the prompt, the tool and the reward, and it is yours."""

from agentrl import Env, Message, tool


class {title}(Env):
    """Asks for a sum; `add` tells it."""

    #: `score` reads its text and what `reset` has set, and nothing that a tool did.
    reward_reads_text_only = True

    async def reset(self, *, seed, task):
        """Begin an episode: `task` is a row of the tasks, what is drawn comes from `seed`."""
        self.answer = task["answer"]
        return [Message.user(task["question"])]

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    async def score(self, text):
        """The reward of the final answer."""
        return float(text.strip() == self.answer)
'''


def write_template(name: str, folder: Path) -> Iterator[str]:
    """Write NAME.py and NAME.jsonl into `folder`; yields what to do next, line by line.

    Raises ConfigError for a name that is no name of a Python module, and for a file that is there.
    """
    title = "".join(part.capitalize() for part in name.split("_"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or _is_taken(name) or _is_taken(title):
        raise ConfigError(
            f"{name!r} is no name for a module with an Env; use small letters, digits and _, and "
            "no word or module of Python or agentrl"
        )
    rows = "".join(
        f'{{"question": "What is {a} plus {b}?", "answer": "{a + b}"}}\n'
        for a, b in ((a, b) for a in range(2, 10) for b in range(11, 19))
    )
    files = {f"{name}.py": _ENV.format(title=title), f"{name}.jsonl": rows}
    for file in files:
        if (folder / file).exists():
            raise ConfigError(f"{folder / file} is there already; choose another name")
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
        yield f"wrote {file}"
    data = f"{name}.py --prompt-data {name}.jsonl"
    yield f"agentrl env check {data}"
    yield f"agentrl env play {data}"
    flags = "--n-samples-per-prompt 8 --rollout-max-response-len 256"
    yield f"python train_async.py --hf-checkpoint MODEL --env {data} {flags}"


def _is_taken(word: str) -> bool:
    known = ("Env", "Message", "agentrl", *sys.stdlib_module_names)
    return keyword.iskeyword(word) or word in known
