"""A run of one half reads each flag that it takes without a word.

`test_flag_reads.py` shows that what only one half reads (`FlagFact.halves`) reaches nothing of the
other. A flag that says nothing of halves is read in both: here its two values make a difference to
the processes that are left, or they ask for it. What is refused or noted need not.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

from agentrl.config.facts import Mode
from agentrl.config.fields import own_fields
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.errors import ConfigError
from tests.slices import of_the_day
from tests.unit.flag_contexts import BESIDE, ONE_VALUE, words_of
from tests.unit.flag_matrix import MODES, Ground
from tests.unit.flag_uses import is_told_apart, read, read_playing

pytestmark = pytest.mark.slow

#: The runs of one half, each with the mode of its flags.
RUNS: dict[str, tuple[Mode, str]] = {
    "plays": ("policy", MODES["plays"][1]),
    "loads": ("policy", MODES["loads"][1]),
    "loads dialogues": ("supervised", f"{MODES['sft'][1]} --load-debug-rollout-data ROLLOUTS"),
}
_FUNCTION = "--custom-generate-function-path tests.unit.flag_contexts:custom_generate_function_path"
_PLAYED = f"--env generate --prompt-data ROWS {_FUNCTION}"
#: What must be there for a flag to be read, where that differs from a run of both halves.
_BESIDE: dict[tuple[str, str], str] = {
    ("reward_level", "plays"): _PLAYED,
    ("custom_config_path", "plays"): _PLAYED,
    ("hook_timeout_s", "plays"): "--data-source-path tests.unit.flag_contexts:Source",
    **{
        (name, run): "--global-batch-size 8"
        for name in ("rollout_batch_size", "n_samples_per_prompt")
        for run in ("loads", "loads dialogues")
    },
}
#: Of the value that they have in each of these runs, or that makes it another run.
_ALWAYS = {"device", "load_debug_rollout_data", "debug_rollout_only", "loss_type"}

Parse = Callable[[str, str], Resolved]


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Parse:
    ground = Ground(tmp_path_factory.mktemp("ground").resolve())

    def make(run: str, flags: str) -> Resolved:
        return parse([*ground.words(RUNS[run][1]), *ground.words(flags)], "train_async")

    return make


@pytest.fixture(scope="module")
def asked(
    resolved: Parse, free_tcp_port_factory: Callable[[], int]
) -> Callable[[str], frozenset[str]]:
    found: dict[str, frozenset[str]] = {}

    def ask(run: str) -> frozenset[str]:
        if run not in found:
            config = resolved(run, "").config
            is_left = "learner" in config.halves
            names = read(config, free_tcp_port_factory()) if is_left else read_playing(config)
            found[run] = frozenset(names)
        return found[run]

    return ask


def cases() -> list[tuple[str, str]]:
    return [
        (name, run)
        for name, field in own_fields().items()
        for run, (mode, _) in RUNS.items()
        if mode in field.fact.modes
        and not field.fact.halves
        and not {name, (name, mode)} & (ONE_VALUE | _ALWAYS)
    ]


@pytest.mark.parametrize(("name", "run"), of_the_day(cases(), 12))
def test_what_a_run_of_one_half_takes_without_a_word_is_read_in_it(
    name: str, run: str, resolved: Parse, asked: Callable[[str], frozenset[str]]
) -> None:
    mode, _ = RUNS[run]
    usual = BESIDE.get((name, mode), BESIDE.get(name, ""))
    beside = _BESIDE.get((name, run), usual)
    try:
        given = resolved(run, f"{beside} {words_of(name)}")
    except ConfigError:
        return
    if not is_read(given.config, name) or is_noted(name, given) or name in asked(run):
        return
    try:
        without = resolved(run, beside).config
    except ConfigError:  # one cannot be without the other
        without = resolved(run, "").config
    if becomes(given.config, without) & asked(run):
        return
    with suppress(ConfigError):  # what refuses it has read it
        assert is_told_apart(given.config, without)


def becomes(config: RunConfig, other: RunConfig) -> set[str]:
    """The fields in which they differ: one that is given may decide another."""
    return {name for name in own_fields() if getattr(config, name) != getattr(other, name)}


def is_noted(name: str, given: Resolved) -> bool:
    """Whether a note says that the flag is not needed, or names it among those without effect."""
    flag = own_fields()[name].flag
    return any(note.startswith(f"{flag}: not needed") for note in given.notes)


@pytest.mark.parametrize(("colocate", "is_read"), [("", False), ("--colocate", True)])
def test_engines_alone_have_the_devices_of_a_learner_that_would_share_them(
    colocate: str, is_read: bool, resolved: Parse
) -> None:
    sizes = "--actor-num-nodes 2 --actor-num-gpus-per-node 4"
    given = resolved("plays", f"{colocate} {sizes}")
    assert given.config.num_engine_devices == (8 if is_read else 1)
    unread = [note for note in given.notes if "--actor-num-nodes, --actor-num-gpus" in note]
    assert bool(unread) != is_read, given.notes
