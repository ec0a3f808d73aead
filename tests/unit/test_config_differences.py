"""Every difference from slime that is in effect in a run is told at its start, or the table of
answers has a reason for silence."""

import re

import pytest

from agentrl.config import answers
from agentrl.config.answers import Remark
from agentrl.config.command_line import Program
from agentrl.config.differences import told_by_remarks
from agentrl.config.resolve import read
from tests.unit.answers_ground import FROM, parsed

SLIMES = "--balance-data"
PPO = "--advantage-estimator ppo"
DISK = "--update-weight-transport disk --update-weight-disk-dir weights"
MINE = "--custom-generate-function-path mine.py"
MEMORY = "--record-memory-history"
TURNS = "--env tools"
#: Of rows and remarks alike: flags of a run in which a difference is in effect. A flag that is not
#: here has its effect where it is given; behind a lone - it has it where it is not.
IN_EFFECT = {
    "--advantage-estimator": f"{TURNS} {PPO}",
    "--apply-chat-template": "-",
    "--buffer-filter-path": "--buffer-filter-path mine.f --data-source-path mine.Source",
    "--custom-loss-function-path": "--custom-loss-function-path mine.f --loss-type custom_loss",
    "--custom-eval-rollout-log-function-path": "--custom-eval-rollout-log-function-path mine.f "
    "--eval-prompt-data a rows",
    "--colocate": "--colocate --rollout-num-gpus 2 --async-buffer-size 0 --max-staleness 0",
    "--critic-load": f"{PPO} --critic-load folder",
    "--custom-rollout-log-function-path": "--custom-rollout-log-function-path mine.f",
    "--eval-interval": "--eval-interval 2",
    "--eval-max-context-len": "--eval-max-context-len 99 --eval-prompt-data a rows",
    "--eval-max-prompt-len": "--eval-max-prompt-len 99 --eval-prompt-data a rows",
    "--gamma": f"{TURNS} {PPO} --gamma 0.9",
    "--group-rm": "--group-rm --custom-rm-path mine.f",
    "--input-key": "-",
    "--kl-coef": "--kl-coef 0.1 --kl-loss-type k2",
    "--label-key": "-",
    "--lambd": f"{TURNS} {PPO} --lambd 0.9",
    "--loss-mask-type": "- --loss-type sft_loss",
    "--lr-decay-style": "--lr-decay-style cosine",
    "--lr-warmup-fraction": "--lr-warmup-fraction 0.1",
    "--lr-warmup-iters": "--lr-warmup-iters 2",
    "--max-tokens-per-gpu": "-",
    "--memory-snapshot-dir": f"- {MEMORY}",
    "--memory-snapshot-num-steps": f"{MEMORY} --memory-snapshot-num-steps 2",
    "--moe-router-dtype": "- --num-experts 8",
    "--num-epoch": "--num-epoch 2",
    "--num-steps-per-rollout": "-",
    "--only-train-params-name-list": "--only-train-params-name-list layers",
    "--over-sampling-batch-size": "--over-sampling-batch-size 64",
    "--partial-rollout": "-",
    "--prefill-num-servers": "--prefill-num-servers 1",
    "--profile-target": "--profile-target train_actor --use-pytorch-profiler",
    "--ref-update-interval": "--ref-update-interval 2 --use-kl-loss",
    "--rm-url": "--rm-url http://127.0.0.1:1 --rm-type remote_rm",
    "--rollout-batch-size": "-",
    "--rollout-max-context-len": f"--rollout-max-context-len 99 {MINE}",
    "--rollout-max-prompt-len": "--rollout-max-prompt-len 99",
    "--rollout-max-response-len": "-",
    "--rollout-num-gpus": "-",
    "--rollout-sample-hook-path": f"--rollout-sample-hook-path mine.f {MINE}",
    "--router-balance-abs-threshold": "--router-balance-abs-threshold 9",
    "--save": "-",
    "--save-interval": "-",
    "--spec": "--spec slime_plugins.models.qwen3_5 get_qwen3_5_spec",
    "--update-weight-disk-dir": DISK,
    "--update-weight-disk-keep-files": f"- {DISK}",
    "--update-weight-local-checkpoint-dir": f"{DISK} --update-weight-local-checkpoint-dir here",
    "--update-weights-interval": "--update-weights-interval 2",
    "--custom-update-weight-post-write-path": f"{DISK} --custom-update-weight-post-write-path m.f",
    "--use-tis": "-",
    "--use-unbiased-kl": "--use-unbiased-kl --use-kl-loss",
    "--wandb-dir": "- --use-wandb",
    "--wandb-group": "--wandb-group g --use-wandb",
}
DIFFERS = {name: row for name, row in answers.rows().items() if row.differs}


def in_effect(name: str) -> str:
    return IN_EFFECT.get(name, name if DIFFERS[name].takes == 0 else f"{name} mine.f")


def started(argv: str, program: Program = "train_async") -> list[str]:
    """The notes of a start: nothing is compared with rows, models and a host."""
    words = [word for word in argv.split() if word != "-"]
    return read(["--ray-address", "auto", *FROM, *words, SLIMES], program).notes


def is_line_of(remark: Remark, line: str) -> bool:
    parts = re.split(r"\{\w+\}", remark.text)
    return re.fullmatch(".*".join(map(re.escape, parts)), line) is not None


def is_told(name: str, notes: list[str]) -> bool:
    row = DIFFERS[name]
    if name in told_by_remarks():
        ways = [one for one in answers.remarks() if name in (one.flag, *one.tells)]
        return any(is_line_of(one, line) for one in ways for line in notes)
    if row.cause:
        return any(name in line and line.endswith(answers.causes()[row.cause]) for line in notes)
    return f"{name}: {row.differs}" in notes


AGAIN = "--eval-prompt-data a rows --eval-prompt-data b rows"
OFFLOADED = (
    "--optimizer-cpu-offload --use-precision-aware-optimizer --overlap-cpu-optimizer-d2h-h2d"
)
#: What is told as flags are read; with the others they are compared first.
READ = {"--actor-num-gpus-per-node", "--ref-load", "--load", "--eval-prompt-data"}
#: Of differences that have a line of their own where they are met: such a run, and its line.
MET = {
    "--actor-num-gpus-per-node": ("", "on the CPU the learner has 1 rank (--actor-num-gpus-per"),
    "--offload-train": ("--offload-train", "--offload-train: no effect without --colocate"),
    "--offload-rollout": ("--no-offload-rollout", "rollout: no effect without --colocate"),
    "--ref-load": ("--ref-load nowhere", "/nowhere; it is passed over"),
    "--load": ("--load nowhere", "/nowhere; it is passed over"),
    "--eval-prompt-data": (AGAIN, "--eval-prompt-data is given 2 times: all that it names holds"),
    "--kl-loss-type": ("--use-kl-loss", "--kl-loss-type low_var_kl, as none is given (slime's de"),
    "--optimizer-cpu-offload": (OFFLOADED, "--optimizer-cpu-offload changes nothing on the CPU"),
    "--use-precision-aware-optimizer": (OFFLOADED, "-aware-optimizer changes nothing on the CPU"),
    "--overlap-cpu-optimizer-d2h-h2d": (OFFLOADED, "-d2h-h2d changes nothing on the CPU"),
}


def test_a_difference_without_a_note_because_a_line_tells_it_has_that_line() -> None:
    assert {name for name, row in DIFFERS.items() if row.quiet == "met"} == MET.keys()
    for name, (argv, said) in MET.items():
        words = ["--device", "cpu", *FROM, *argv.split()]
        notes = read(words, "train_async").notes if name in READ else parsed(argv.split()).notes
        assert said in "\n".join(notes)


@pytest.mark.parametrize("name", DIFFERS)
def test_a_difference_that_is_in_effect_is_told_or_has_a_reason_for_silence(name: str) -> None:
    row = DIFFERS[name]
    ways = [bool(row.quiet), name in told_by_remarks(), bool(row.cause)]
    assert sum(ways) <= 1, "it is told in one way"
    if row.quiet:
        assert row.quiet in answers.reasons_for_silence()
        return
    argv = in_effect(name)
    assert name in argv or argv.startswith("- ") or argv == "-"
    assert is_told(name, started(argv))


#: What slime has no default for, or another one.
TOLD = (
    f"{TURNS} "
    "--rollout-batch-size 4 --num-steps-per-rollout 2 --max-tokens-per-gpu 64 --save here "
    "--save-interval 2 --rollout-max-response-len 9 --label-key label --no-use-tis"
)


def test_every_remark_is_told_in_some_run_and_not_in_every_one() -> None:
    runs = [started(in_effect(name)) for name, row in DIFFERS.items() if not row.quiet]
    runs += [started("--loss-type sft_loss"), started("", program="train")]
    runs += [started(f"--rollout-max-prompt-len 99 {MINE}"), started(TOLD)]
    for remark in answers.remarks():
        told = [any(is_line_of(remark, line) for line in notes) for notes in runs]
        assert any(told), remark.text
        assert not all(told), remark.text


def line_about(what: str, argv: str, program: Program = "train_async") -> str:
    """The one line that says `what`, or nothing."""
    found = [line for line in started(argv, program=program) if what in line]
    assert len(found) <= 1
    return "".join(found)


def test_scores_of_several_versions_are_told_where_there_may_be_some() -> None:
    assert "a score may be of several versions" in line_about("--eval-interval: ", BESIDE)
    assert "a score may be" in line_about("--eval-interval: ", BESIDE, "train")
    for held in ("--eval-mode pinned", "--colocate"):
        assert not line_about("--eval-interval: ", f"{BESIDE} {held}", "train")


BESIDE = "--eval-interval 2 --eval-prompt-data a rows"


def test_how_far_generation_is_ahead_is_told_without_any_flag_of_it() -> None:
    what = "generation goes on while the learner trains and pushes: up to "
    assert f"{what}2 iterations ahead" in line_about(what, "")
    assert "and tokens up to 2 iterations old are trained (--max-staleness)" in line_about(what, "")
    assert not line_about(what, "", "train")
    assert not line_about(what, "--loss-type sft_loss")


@pytest.mark.parametrize(
    "moves",
    [
        *("--lr-warmup-iters 2", "--lr-warmup-fraction 0.1", "--lr-decay-style cosine"),
        *("--lr-decay-style linear", "--lr-decay-style cosine --lr-warmup-iters 2"),
    ],
)
def test_a_rate_that_moves_is_that_of_slimes_next_step_and_a_constant_one_is_slimes(
    moves: str,
) -> None:
    what = "the learning rate of each step is that of slime's next one"
    assert line_about(what, moves)
    assert not line_about(what, "--lr-decay-style constant")


def test_a_newline_behind_a_turn_is_told_where_turns_are_imitated() -> None:
    what = "of an imitated turn the tokens up to its end are trained"
    assert "(slime trains it: --loss-mask-type qwen" in line_about(what, "--loss-type sft_loss")
    assert not line_about(what, "--loss-mask-type qwen")


def test_a_short_last_iteration_is_told_where_epochs_count() -> None:
    assert "the last iteration may be short" in line_about("--num-epoch without", "--num-epoch 2")
    assert not line_about("--num-epoch without", "--num-epoch 2 --num-rollout 3")


def test_a_length_of_one_turn_is_told_where_slime_has_it_of_the_whole_answer() -> None:
    what, bound = "bounds one turn", "--rollout-max-response-len 9"
    assert line_about(what, f"{bound} {TURNS}")
    assert not line_about(what, bound)
    assert not line_about(what, f"{bound} {MINE}")


#: The worked example of docs/from-verl.md, and what a script of slime's has beside such flags.
VERLS = (
    "--input-key prompt --label-key a.b --custom-rm-path mine.f --rollout-batch-size 2 "
    "--n-samples-per-prompt 8 --rollout-max-response-len 9 --calculate-per-token-loss "
    "--eps-clip-c 3 --num-steps-per-rollout 2 --lr 1e-6 --num-epoch 2"
)


@pytest.mark.parametrize("mark", ["--actor-num-nodes 1", "--apply-chat-template", SLIMES])
def test_a_command_line_is_slimes_by_a_mark_of_its_scripts(mark: str) -> None:
    told = "this command line is slime's"
    elsewhere = read([*FROM, *VERLS.split()], "train_async").notes
    assert not [note for note in elsewhere if "slime" in note]
    slimes = read([*FROM, *VERLS.split(), *mark.split()], "train_async").notes
    assert any(note.startswith(told) for note in slimes)


def test_functions_of_slimes_signatures_share_a_line_and_slimes_own_are_none() -> None:
    own = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    mine = "--custom-rm-path mine.f --rollout-sample-filter-path mine.g"
    line = line_about("functions of yours", f"{mine} --dynamic-sampling-filter-path {own}")
    assert line.startswith("--custom-rm-path, --rollout-sample-filter-path: what functions of you")
    assert not line_about("functions of yours", f"--dynamic-sampling-filter-path {own}")
