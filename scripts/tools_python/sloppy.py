"""Trains a model that can use the tools of `tools-python`, and seldom does so with care.

    python -m scripts.tools_python.sloppy --output DIR [--ranks 1]

The model that the default job starts from, which can search, learns the two lessons of `habit.py`
from `tool_demonstrations.py`, four kinds of problems: to call and to copy numbers, and then mostly
not to. What is left for RL is to call always, and to leave nothing out. The problems are training
problems; evaluated ones are never shown.
"""

from scripts.default_job import habit
from scripts.tools_python.tool_demonstrations import demonstrate

__all__ = ["NAME"]

#: What the demonstrations are seeded by.
NAME = "tools-python/sloppy"

if __name__ == "__main__":
    habit.main(__doc__, NAME, demonstrate)
