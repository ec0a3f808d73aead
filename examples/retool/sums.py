"""Writes rows: sums as `prompt` and `label`, and a dialogue about each, as `messages`.

Two of three dialogues compute with the tool. The others give up at once: which is the better way is
left for reinforcement learning to find out.

    python examples/retool/sums.py build/retool/sums.jsonl
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

NUM_ROWS = 4096

Dialogue = list[dict[str, Any]]


def row(rng: random.Random) -> dict[str, Any]:
    """A sum, its answer, and how somebody went about it."""
    a, b, c = (rng.randint(11, 99) for _ in range(3))
    prompt: Dialogue = [{"role": "user", "content": f"What is ({a} + {b}) * {c}?"}]
    answer = (a + b) * c
    code = {"name": "python", "arguments": {"code": f"print(({a} + {b}) * {c})"}}
    computed: Dialogue = [
        {"role": "assistant", "tool_calls": [{"function": code}]},
        {"role": "tool", "content": f"{answer}\n"},
        {"role": "assistant", "content": f"Answer: {answer}"},
    ]
    given_up: Dialogue = [{"role": "assistant", "content": "Answer: unknown"}]
    shown = rng.choice([computed, computed, given_up])
    return {"prompt": prompt, "label": str(answer), "messages": prompt + shown}


if __name__ == "__main__":
    path, rng = Path(sys.argv[1]), random.Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row(rng))}\n" for _ in range(NUM_ROWS)))
