"""A function of the user's that does not return: it is told, and ends the process at a deadline."""

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.supervision import HOOK_FAILED
from agentrl.config.run import RunConfig
from agentrl.learner.hook_watch import HookWatch
from agentrl.learner.hooks import INIT, LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.watched_algorithm import load_watched
from tests.parity.golden import Batch, TableBackend, lineage

#: Parts of an algorithm: flag, head of the function, what it returns once it is let go on.
PARTS = {
    "custom_reward_post_process_path": (
        "groups",
        "[[0.5] * len(group.rewards) for group in groups]",
    ),
    "custom_advantage_function_path": ("rows", "[[0.5] * len(row.tokens_L) for row in rows]"),
    "custom_loss_function_path": (
        "micro_batch, logprobs_T, entropy_T",
        "(logprobs_T.mean(), {'loss': logprobs_T.mean().detach()})",
    ),
    "custom_tis_function_path": ("trained", "trained.engine_log_ratio('token') * 0 + 1"),
    "custom_pg_loss_reducer_function_path": (
        "total_lengths, response_lengths, loss_masks, calculate_per_token_loss",
        "lambda losses: losses.sum()",
    ),
}
BESIDE: dict[str, dict[str, Any]] = {
    "custom_loss_function_path": {"loss_type": "custom_loss"},
    "custom_tis_function_path": {"use_tis": True},
}


class Hung:
    """A watch of a tenth of a second. Its words let the function that hangs go on, and so does the
    watch's first warning if there is no limit."""

    def __init__(self, limit_s: float = 0.1) -> None:
        self.words: list[str] = []
        self.told = threading.Event()
        sys.told = self.told  # type: ignore[attr-defined]
        self.watch = HookWatch(limit_s, self.late, slow_s=0.1)

    def late(self, words: str) -> None:
        self.words.append(words)
        self.told.set()


def hanging(folder: Path, head: str, returned: str = "None") -> str:
    """The place of a function that hangs in its first line until somebody is told of it."""
    text = f"import sys\n\ndef mine({head}):\n    assert sys.told.wait(50)\n    return {returned}\n"
    (folder / "mine.py").write_text(text)
    return f"{folder}/mine.py:mine"


def test_a_hook_that_hangs_is_ended_with_flag_line_and_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hung = Hung()
    hooks = LearnerHooks(RunConfig(custom_megatron_init_path=hanging(tmp_path, "args")), hung.watch)
    with hung.watch:
        hooks.call(INIT, lambda value: [value])
    (words,) = hung.words
    assert re.match(
        r"--custom-megatron-init-path \S+mine\.py:mine has not returned within 0\.1 s "
        r"\(--hook-timeout-s\), and stood at \S*mine\.py:4: the run ends here; .*--resume$",
        words,
    )
    assert "assert sys.told.wait(50)" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("field", PARTS)
def test_a_part_of_the_algorithm_that_hangs_is_ended_too(field: str, tmp_path: Path) -> None:
    hung = Hung()
    flags = {field: hanging(tmp_path, *PARTS[field])} | BESIDE.get(field, {})
    cfg, batch = RunConfig(**flags), Batch(1)
    with hung.watch:
        algorithm = load_watched(cfg, hung.watch)
        train_lease(batch.header, algorithm, TableBackend(1), lineage(), batch.fetch)
    (words,) = hung.words
    assert words.startswith(f"--{field.replace('_', '-')} {tmp_path}/mine.py:mine: mine (")
    assert re.search(r"stood at \S*mine\.py:4", words)


def test_a_method_of_an_estimator_of_the_user_s_that_hangs_is_ended_too(tmp_path: Path) -> None:
    hung = Hung()
    (tmp_path / "mine.py").write_text(
        "import sys\n\nfrom agentrl.algorithms.grpo import Grpo\n\n\nclass Mine(Grpo):\n"
        "    def values(self, rewards):\n        assert sys.told.wait(50)\n"
        "        return super().values(rewards)\n"
    )
    cfg, batch = RunConfig(advantage_estimator=f"{tmp_path}/mine.py"), Batch(1)
    with hung.watch:
        algorithm = load_watched(cfg, hung.watch)
        train_lease(batch.header, algorithm, TableBackend(1), lineage(), batch.fetch)
    (words,) = hung.words
    assert re.match(
        rf"--advantage-estimator {tmp_path}/mine\.py: values \(\S*mine\.py:7\) has", words
    )


def test_what_a_function_returns_is_watched_as_the_function_is() -> None:
    """A reducer of losses is made once, and called for each micro-batch."""
    hung = Hung()
    with hung.watch:
        reducer = hung.watch.watched(lambda: lambda: hung.told.wait(50), "--reducer mine.py")()
        assert hung.words == []
        assert reducer()
    (words,) = hung.words
    assert words.startswith("--reducer mine.py has not returned within")


def test_algorithms_of_agentrl_are_not_watched() -> None:
    assert "loss" not in vars(load_watched(RunConfig(), HookWatch()))


def test_a_hook_that_takes_long_is_told_before_its_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hung = Hung(limit_s=3600)
    handler = logging.Handler()
    handler.emit = lambda record: hung.told.set()  # type: ignore[method-assign]
    log = logging.getLogger("agentrl.learner.hook_watch")
    log.addHandler(handler)
    try:
        place = hanging(tmp_path, "args")
        hooks = LearnerHooks(RunConfig(custom_megatron_init_path=place), hung.watch)
        with hung.watch:
            hooks.call(INIT, lambda value: [value])
    finally:
        log.removeHandler(handler)
    said = caplog.records[0].getMessage()
    assert re.match(
        r"--custom-megatron-init-path \S+ has not returned after \d+ s, and stands at", said
    )
    assert hung.words == []


def test_a_hook_that_returns_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    hung = Hung()
    with hung.watch, hung.watch.call("one"):
        pass
    assert not caplog.records
    assert hung.words == []
    assert not [each for each in threading.enumerate() if each.name == "hook-watch"]


@pytest.mark.slow
def test_a_learner_ends_with_the_exit_code_of_a_hook() -> None:
    """With which the run ends: one that is not mended would hang again, so nothing restarts it."""
    code = (
        "import logging, time\n"
        "from agentrl.cluster.roles.learner import hook_watch\n"
        "from agentrl.config.run import RunConfig\n"
        "logging.basicConfig()\n"
        "with hook_watch(RunConfig(hook_timeout_s=0.2)) as watch, watch.call('--flag mine.py:f'):\n"
        "    time.sleep(50)\n"
    )
    argv = [sys.executable, "-c", code]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=500)
    assert ended.returncode == HOOK_FAILED
    last = ended.stderr.splitlines()[-1]
    assert "--flag mine.py:f has not returned within 0.2 s" in last
    assert "time.sleep(50)" in ended.stderr or "<string>" in ended.stderr


def test_code_that_holds_the_interpreter_ends_the_process_with_its_stack() -> None:
    """No thread of Python's can look at it: `PyDLL` keeps the lock while C waits."""
    code = (
        "import ctypes, time\n"
        "from agentrl.learner import hook_watch\n"
        "hook_watch._GRACE_S = 0.5\n"
        "def mine(): ctypes.PyDLL(None).usleep(200_000); ctypes.PyDLL(None).sleep(30)\n"
        "watch = hook_watch.HookWatch(3.0)\n"
        "with watch, watch.call('mine'):\n"
        "    end = time.monotonic() + 20\n"
        "    while not watch._is_armed and time.monotonic() < end: pass\n"
        "    mine()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 1
    assert "in mine" in ended.stderr
