"""Flags are read where they are said to be, and refused elsewhere: seen, not declared.

For each flag and mode the processes are made with and without it. What is said to be read there
must change what they are told, or be asked for by learner or driver; what is not must change
nothing.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from agentrl.config.answers import remarks
from agentrl.config.conditions import CONDITIONS
from agentrl.config.differences import WHERE
from agentrl.config.facts import Half, Mode
from agentrl.config.fields import convert, own_fields
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from tests.slices import of_the_day
from tests.unit.flag_contexts import (
    BESIDE,
    DISK,
    ONE_VALUE,
    OPD,
    OTHER,
    PPO,
    READ_AND_UNUSED,
    ROWS,
    loss,
    words_of,
)
from tests.unit.flag_matrix import MODES, Ground
from tests.unit.flag_uses import read, told
from tests.unit.flag_values import VALUES

pytestmark = pytest.mark.slow

#: `_LOSS` names it as a function of this module.
__all__ = ["loss"]

SHOWN: dict[Mode, str] = {"policy": "train_async", "supervised": "sft", "eval": "eval"}
_LOSS = f"--loss-type custom_loss --custom-loss-function-path {__name__}:loss"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    ground = Ground(tmp_path_factory.mktemp("ground").resolve())
    said = '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'
    row = f'{{"input": {said}, "question": "q", "answer": "a"}}\n'
    ground.names["ROWS2"].write_text(row * 2)
    return ground


Resolve = Callable[[Mode, str], RunConfig]


@pytest.fixture(scope="module")
def resolve(ground: Ground) -> Resolve:
    def make(mode: Mode, flags: str) -> RunConfig:
        program, base = MODES[SHOWN[mode]]
        return parse([*ground.words(base), *ground.words(flags)], program).config

    return make


Told = Callable[[Mode, str], dict[str, str]]


@pytest.fixture(scope="module")
def processes(resolve: Resolve) -> Told:
    return functools.cache(lambda mode, flags: told(resolve(mode, flags)))


Asked = dict[Mode, set[str]]


@pytest.fixture(scope="module")
def asked(resolve: Resolve, free_tcp_port_factory: Callable[[], int]) -> Asked:
    lines: dict[Mode, tuple[str, ...]] = {
        "policy": ("", "--use-kl-loss", OPD, _LOSS, PPO),
        "supervised": ("--prompt-loss-weight 0.1",),
        "eval": ("",),
    }
    found = {
        mode: set().union(*(read(resolve(mode, line), free_tcp_port_factory()) for line in every))
        for mode, every in lines.items()
    }
    # What is read to make the objective says nothing of whether the loss has a use for it.
    terms = {n for n, f in own_fields().items() if f.fact.group in ("objective", "policy loss")}
    return {mode: names - terms | {"loss_type"} for mode, names in found.items()}


def cases(*, is_read: bool) -> Iterator[tuple[str, Mode]]:
    for name, field in own_fields().items():
        for mode in SHOWN:
            if (mode in field.fact.modes) == is_read and not {name, (name, mode)} & ONE_VALUE:
                yield name, mode


@pytest.mark.parametrize("mode", SHOWN)
def test_the_same_flags_tell_the_processes_the_same(mode: Mode, resolve: Resolve) -> None:
    assert told(resolve(mode, "")) == told(resolve(mode, ""))


@pytest.mark.parametrize(("name", "mode"), of_the_day(list(cases(is_read=True)), 12))
def test_what_is_said_to_be_read_reaches_a_process(
    name: str, mode: Mode, processes: Told, asked: Asked, resolve: Resolve
) -> None:
    if name in asked[mode]:
        return
    beside = BESIDE.get((name, mode), BESIDE.get(name, ""))
    try:
        without = processes(mode, beside)
    except ConfigError:  # one cannot be without the other
        without = processes(mode, "")
    words = f"{beside} {words_of(name)}"
    assert processes(mode, words) != without or becomes(resolve(mode, words), name) in asked[mode]


def becomes(config: RunConfig, name: str) -> str | None:
    """The field that has the value of `name` and is asked for in its place."""
    return "load" if name == "ref_load" and config.load == config.ref_load else None


def changed(config: RunConfig, name: str, ground: Ground) -> RunConfig:
    """`config` with another value that the command line would refuse."""
    field = own_fields()[name]
    value: Any = not field.default
    if field.kind != "bool":
        words = [ground.real(word) for word in OTHER.get(name, VALUES.get(name, "")).split()]
        value = convert(field, words if field.kind == "list" else words[0])
    return msgspec.structs.replace(config, **{name: value})


def without_buffer(told: dict[str, str]) -> dict[str, str]:
    """Where dialogues are imitated nothing is sampled, compared or old: the buffer's rules for that
    meet nothing."""
    return {name: value for name, value in told.items() if name != "buffer"}


@pytest.mark.parametrize("mode", SHOWN)
def test_what_is_said_to_be_unread_reaches_none(
    mode: Mode, resolve: Resolve, asked: Asked, ground: Ground
) -> None:
    unread = {name for name, where in cases(is_read=False) if where == mode}
    unread -= READ_AND_UNUSED[mode]
    assert sorted(unread & asked[mode]) == []
    config = resolve(mode, "")
    usual = without_buffer(told(config))

    def reach(names: set[str]) -> bool:
        other = functools.reduce(lambda made, name: changed(made, name, ground), names, config)
        return without_buffer(told(other)) != usual

    guilty = {name for name in unread if reach({name})} if reach(unread) else set()
    assert not guilty


#: A policy's run of one half, by the half that it has.
HALVES: dict[Half, str] = {
    "learner": "--load-debug-rollout-data ROLLOUTS",
    "engines": "--debug-rollout-only",
}


@pytest.mark.parametrize("half", HALVES)
def test_what_the_half_that_is_left_out_reads_reaches_no_process(
    half: Half, resolve: Resolve, ground: Ground
) -> None:
    config = resolve("policy", HALVES[half])
    facts = {name: field.fact for name, field in own_fields().items()}
    left_out = {n for n, fact in facts.items() if "policy" in fact.modes and fact.halves - {half}}
    left_out -= {"loss_type"}  # its other value is another mode

    def made(names: set[str]) -> dict[str, str]:
        other = functools.reduce(lambda made, name: changed(made, name, ground), names, config)
        return told(other)

    usual = made(set())
    guilty = set() if made(left_out) == usual else {n for n in left_out if made({n}) != usual}
    assert not guilty


UNMET: list[tuple[str, str]] = [
    ("kl_loss_coef", ""),
    ("kl_loss_type", ""),
    ("kl_loss_coef", _LOSS),
    ("tis_clip", "--no-use-tis"),
    ("tis_clip", "--use-rollout-logprobs"),
    ("use_tis", "--use-rollout-logprobs"),
    ("custom_tis_function_path", "--no-use-tis"),
    ("custom_tis_function_path", "--use-rollout-logprobs"),
    ("use_rollout_logprobs", _LOSS),
    ("scale_lr_by_ess", "--use-rollout-logprobs"),
    ("scale_lr_by_ess", _LOSS),
    ("custom_pg_loss_reducer_function_path", _LOSS),
    ("custom_pg_loss_reducer_function_path", "--loss-length 64"),
    ("use_unbiased_kl", ""),
    ("ref_update_interval", ""),
    ("opd_kl_coef", ""),
    ("opd_teacher_load", ""),
    ("opd_teacher_load", "--use-opd --opd-type sglang --rm-url http://127.0.0.1:1"),
    ("rm_url", ""),
    ("rm_url", OPD),
    ("critic_load", ""),
    ("critic_lr", ""),
    ("critic_lr_warmup_iters", ""),
    ("overlong_max_length", ""),
    ("overlong_penalty_factor", ""),
    ("calculate_per_token_loss", "--loss-length 64"),
    ("tis_clip", _LOSS),
    ("tis_clip_low", "--no-use-tis"),
    ("tis_mode", "--no-use-tis"),
    ("tis_level", "--use-rollout-logprobs"),
    ("opsm_delta", ""),
    ("trust_region", _LOSS),
    ("use_opsm", _LOSS),
    ("eps_clip", _LOSS),
    ("eps_clip_high", _LOSS),
    ("eps_clip_c", _LOSS),
    ("use_tis", _LOSS),
    ("entropy_coef", _LOSS),
    ("disable_grpo_std_normalization", "--disable-rewards-normalization"),
    ("eval_mode", ""),
    ("n_samples_per_eval_prompt", ROWS),
    ("eval_temperature", ROWS),
    ("eval_input_key", "--eval-prompt-data held ROWS2"),
    ("eval_label_key", ROWS),
    ("rollout_shuffle", ""),
    ("num_epoch", ""),
    ("rollout_external_api_key_var", ""),
    ("rollout_num_gpus", "--rollout-external-engine-addrs 127.0.0.1:1"),
    ("update_weight_disk_dir", ""),
    ("update_weight_delta_encoding", f"{DISK}"),
    ("custom_update_weight_post_write_path", ""),
    ("profile_target", ""),
    ("profile_step_start", "--record-memory-history"),
    ("tensorboard_dir", "--record-memory-history"),
    ("memory_snapshot_dir", "--use-pytorch-profiler"),
]


@pytest.mark.parametrize(("name", "beside"), UNMET)
def test_a_flag_whose_condition_fails_changes_nothing(
    name: str, beside: str, resolve: Resolve, ground: Ground
) -> None:
    config = resolve("policy", beside)
    other = changed(config, name, ground)
    assert told(other) == told(config)


def test_every_condition_is_of_some_flag_or_remark() -> None:
    named = {field.fact.needs or "" for field in own_fields().values()}
    of_remarks = {remark.needs for remark in remarks()}
    assert WHERE.keys() <= of_remarks
    assert named | of_remarks - WHERE.keys() == CONDITIONS.keys() | {""}
