"""Answers that hang on a whole command line or file: flags under another name, flags that others
decide, and what whoever comes from slime is told at the start."""

from pathlib import Path

import msgspec
import pytest

from agentrl.config import answers
from agentrl.config.command_line import read_flags
from agentrl.config.explained import explain
from agentrl.config.files import read_file
from agentrl.config.launch_script import Argument
from agentrl.config.passthrough import FAMILIES, Family, spelled, table
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError
from tests.unit.answers_ground import (
    BASE,
    FROM,
    FULLY_ASYNC,
    IMITATION,
    MODEL,
    base,
    parsed,
    refusal,
)

pytestmark = pytest.mark.slow

# ---- flags with another name, and flags that others decide ---------------------------------------


def test_a_flag_that_was_renamed_is_taken_under_its_name_of_today() -> None:
    given = read_flags(["--sglang-cuda-graph-max-bs=16"])
    assert given.values == {"sglang": {"cuda_graph_max_bs_decode": 16}}
    notes = parsed(["--sglang-cuda-graph-max-bs", "16"]).notes
    renamed = "--sglang-cuda-graph-max-bs is --sglang-cuda-graph-max-bs-decode here: "
    assert [line for line in notes if line.startswith(renamed)] != []


def test_a_global_batch_size_says_how_many_steps_an_iteration_has() -> None:
    resolved = parsed(["--global-batch-size", "4"])
    assert resolved.config.num_steps_per_rollout == 4
    assert resolved.said["num_steps_per_rollout"] == "--global-batch-size 4"
    assert "16 episodes make --num-steps-per-rollout 4" in "\n".join(resolved.notes)


def test_a_global_batch_size_that_agrees_with_the_steps_is_already_so() -> None:
    resolved = parsed(["--global-batch-size", "8", "--num-steps-per-rollout", "2"])
    assert resolved.config == parsed(["--num-steps-per-rollout", "2"]).config
    assert "--global-batch-size 8: already so" in "\n".join(resolved.notes)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("8 --num-steps-per-rollout 4", "= 16 episodes are not 4 steps (--num-steps-per-rollout)"),
        ("5", "= 16 episodes cannot be shared by steps of 5; make it a divisor of 16"),
        ("2", "in steps of 2 would cut groups of 4, and a step takes whole groups; make it a mul"),
        ("2 --num-steps-per-rollout 8", "in steps of 2 would cut groups of 4"),
        ("many", "--global-batch-size many: it is a number of episodes"),
        ("0", "--global-batch-size 0: it is a number of episodes"),
        ("8 8", "--global-batch-size takes one value, not 2"),
        ("", "--global-batch-size takes one value, not 0"),
        ("9" * 5000, "9: it is a number of episodes"),
    ],
)
def test_a_global_batch_size_that_cannot_be_is_told_its_numbers(argv: str, said: str) -> None:
    assert said in refusal(["--global-batch-size", *argv.split()])


def test_only_learner_and_engines_that_share_devices_offload() -> None:
    alone = "--offload: learner and engines have devices of their own without --colocate"
    assert alone in refusal(["--offload"])
    assert "already so" not in refusal(["--offload"])
    shared = ["--colocate", "--async-buffer-size", "0", "--max-staleness", "0", "--offload"]
    assert "\n--offload: already so: under --colocate" in "\n".join(parsed(shared).notes)
    flags = explain([Argument("--offload"), Argument("--colocate")])
    assert [one.answer for one in flags] == ["already so", "works"]


def test_a_global_batch_that_cuts_groups_is_explained_as_it_is_refused() -> None:
    argv = "--rollout-batch-size 4 --n-samples-per-prompt 4 --global-batch-size 2"
    found = explain([Argument(word) for word in argv.split()])[-1]
    assert found.answer == "refused"
    assert "would cut groups" in found.says
    (line,) = refusal(argv.split()).splitlines()
    assert line.startswith("--global-batch-size 2: ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--rollout-function-path slime.rollout.sft_rollout.generate_rollout", "--loss-type sft_"),
        ("--rollout-function-path slime.rollout.x.f", "agentrl has no such function of slime's"),
        ("--eval-function-path slime.rollout.x.f", "agentrl has no such function of slime's"),
        ("--debug-train-only", "a policy is trained on what engines sample"),
    ],
)
def test_what_the_rest_of_the_command_line_contradicts_is_refused(argv: str, said: str) -> None:
    assert said in refusal(argv.split())


def spec(family: str, function: str) -> list[str]:
    return ["--spec", f"slime_plugins.models.{family}", f"get_{function}"]


def test_a_spec_of_a_family_that_is_here_is_already_so() -> None:
    for argv in (
        spec("glm4", "glm_spec"),
        spec("qwen3_next", "qwen3_next_spec"),
        spec("minimax_m2", "minimax_m2_layer_spec"),
        spec("qwen3_5", "qwen3_5_spec"),
        spec("qwen3_5_vl", "qwen3_5_vl_model_provider"),
    ):
        resolved = parsed(argv)
        assert resolved.config == base().config
        assert f"{' '.join(argv)}: already so: the layers are those of the family" in "\n".join(
            resolved.notes
        )
    assert "--spec x: this waits for the other model families" in refusal(["--spec", "x"])


def test_the_spec_of_glm_5_is_refused_by_that_name() -> None:
    said = refusal(argv := spec("glm5.glm5", "glm5_spec"))
    assert f"{' '.join(argv)}: GLM-5 is not supported: its sparse attention takes no" in said
    assert "other model families" not in said


@pytest.mark.parametrize("argv", [["--rollout-function-path", FULLY_ASYNC], ["--fully-async"]])
def test_only_a_run_that_generates_ahead_is_fully_async(argv: list[str]) -> None:
    line = f"{' '.join(argv)}: already so: train_async.py generates while it trains"
    assert line in "\n".join(parsed(argv).notes)
    in_turn = "this run generates and trains in turn; run train_async.py"
    with pytest.raises(ConfigError, match=in_turn):
        parse([*BASE, *argv], "train")
    for flag in ("--async-buffer-size", "--max-staleness"):
        with pytest.raises(ConfigError, match=in_turn):
            parsed([*argv, flag, "0"])
    words = [Argument(word) for word in argv]
    assert [found.answer for found in explain(words, "train_async")] == ["already so"]
    assert [found.answer for found in explain(words, "train")] == ["refused"]


def test_slimes_flags_of_imitation_are_what_imitation_does() -> None:
    flags = "--rollout-function-path slime.rollout.sft_rollout.generate_rollout --debug-train-only"
    argv = [*flags.split(), "--disable-compute-advantages-and-returns", "--loss-mask-type", "qwen"]
    resolved = parsed(argv, IMITATION)
    assert resolved.config == parsed(["--chat-format", "qwen"], IMITATION).config
    assert "\n".join(resolved.notes).count(": already so: ") == 3


def test_a_loss_mask_type_is_the_chat_format_of_imitation() -> None:
    resolved = parsed(["--loss-mask-type", "qwen3_5"], IMITATION)
    assert resolved.config == parsed(["--chat-format", "qwen3-5"], IMITATION).config
    assert resolved.said["chat_format"] == "--loss-mask-type qwen3_5"
    assert "--loss-mask-type qwen3_5: --chat-format qwen3-5 says" in "\n".join(resolved.notes)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "qwen3 --chat-format qwen3-5",
            "qwen3: --chat-format is qwen3-5; leave one of the two out",
        ),
        ("other", "other: no --chat-format has that name (deepseek-r1, "),
        ("distill_qwen", "distill_qwen: give --chat-format deepseek-r1 in its place: it writes"),
    ],
)
def test_a_loss_mask_type_that_cannot_be_the_chat_format_is_refused(argv: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(["--loss-mask-type", *argv.split()], IMITATION)
    assert said in str(caught.value)


@pytest.mark.parametrize("argv", ["qwen3_5", "distill_qwen", "qwen3 --chat-format qwen3-5"])
def test_a_loss_mask_type_changes_nothing_where_a_policy_is_trained(argv: str) -> None:
    kind, *others = argv.split()
    resolved = parsed(["--loss-mask-type", kind, *others])
    assert resolved.config == parsed(others).config
    assert f"--loss-mask-type {kind}: already so: a policy is trained on the tokens" in "\n".join(
        resolved.notes
    )


def test_the_request_timeout_of_slimes_router_is_the_deadline_of_a_turn() -> None:
    flag = "--sglang-router-request-timeout-secs"
    resolved = parsed([flag, "1200"])
    assert resolved.config.turn_timeout_s == 1200
    assert f"{flag} is --turn-timeout-s here: a turn that takes longer is ended" in "\n".join(
        resolved.notes
    )
    assert "is longer than --episode-timeout-s 3600" in refusal([flag, "14400"])


# ---- files, and whoever comes from slime ---------------------------------------------------------


def test_a_file_is_answered_as_the_command_line_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "use_dynamic_batch_size = true\nglobal-batch-size = 4\n"
        "[megatron]\nenable_experimental = true\n[sglang]\ncuda_graph_max_bs = 16\n"
    )
    resolved = parsed(["--config", str(file)])
    changed = {"num_steps_per_rollout": 4}
    sglang = {**base().config.sglang, "cuda_graph_max_bs_decode": 16}
    assert resolved.config == msgspec.structs.replace(base().config, sglang=sglang, **changed)
    assert "use_dynamic_batch_size: already so" in "\n".join(resolved.notes)


@pytest.mark.parametrize("name", sorted(answers.rows()))
def test_what_is_false_in_a_file_is_as_without_it(name: str, tmp_path: Path) -> None:
    row = answers.rows()[name]
    if row.takes != 0 or row.state == "works" or row.renamed:
        return
    family = next((f for f in FAMILIES if name in answers.rows(f)), None)
    key = name.removeprefix(spelled(family, "--") if family else "--").replace("-", "_")
    file = tmp_path / "mine.toml"
    head = f"[{family}]\n" if family and key in known_keys(family) else ""
    file.write_text(f"{head}{key} = false\n")
    given = read_file(file)
    assert (given.refused, given.values.get(family or "", {})) == ([], {})


def known_keys(family: Family) -> set[str]:
    return {flag.key for flag in table(family).flags}


def test_a_false_that_is_always_true_here_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("release_train = false\nbalance_data = false\nno_save_optim = true\n")
    given = read_file(file)
    assert given.notes == [
        "balance_data = false is as without it: rows are always balanced over ranks by length"
    ]
    assert [line.split(": ")[1] for line in given.refused] == ["no_save_optim"]
    resolved = parsed(["--no-release-train"])
    assert "--no-release-train: already so: it is off" in resolved.notes


def test_a_file_is_told_all_that_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("release_train: true\nmax_turns: 0\nmax_lag: 3\nsglang:\n  tpsize: 2\n")
    words = refusal(["--config", str(file), "--no-save-optim"])
    for said in (
        "release_train: this waits",
        "max_lag: agentrl",
        "--max-turns",
        "tpsize",
        "--no-save-optim",
    ):
        assert said in words


def test_defaults_that_differ_are_told_with_their_values_where_they_hold() -> None:
    text = "\n".join(parsed(["--balance-data"]).notes)
    for said in (
        "--rollout-max-response-len is ",
        "--max-tokens-per-gpu is ",
        "a checkpoint is written every ",
        "--lr-decay-style is constant",
        "without --rollout-num-gpus and --colocate a run has one",
        "without --eval-interval evaluation sets are played before the first iteration",
    ):
        assert f"\n{said}" in text
    assert "{" not in text
    assert "--rollout-batch-size is " not in text


def test_without_sets_nothing_is_told_of_evaluations(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "x", "label": "y"}\n')
    argv = ["--hf-checkpoint", str(MODEL), "--prompt-data", str(rows), "--device", "cpu"]
    argv += ["--rollout-max-response-len", "64"]
    told = "without --eval-interval evaluation sets are played"
    for sets, is_told in (([], False), (["--eval-prompt-data", "a", str(rows)], True)):
        notes = parse([*argv, *sets, "--balance-data"], "train").notes
        assert (told in "\n".join(notes)) is is_told


def test_whoever_comes_from_slime_hears_of_the_defaults_that_differ() -> None:
    notes = "\n".join(parsed(["--use-dynamic-batch-size"]).notes)
    assert "docs/from-slime.md" in notes
    assert "\n--use-tis is on" in notes
    assert "docs/from-slime.md" not in "\n".join(base().notes)
    given = parsed(["--use-dynamic-batch-size", "--no-use-tis"])
    assert "--use-tis is on" not in "\n".join(given.notes)


FEW = "--num-rollout 3 --rollout-max-response-len 64 --lr 1e-6"
MARK = "--apply-chat-template"
OF_SLIMES = f"{FEW} --eps-clip 0.3 {MARK}"


@pytest.mark.parametrize(
    ("argv", "is_slimes"),
    [
        (OF_SLIMES, True),
        (f"{OF_SLIMES} --rm-type math --run-id mine --chat-format qwen3", True),
        (f"{OF_SLIMES} --rm-type math --tensor-model-parallel-size 1 --weight-decay 0", True),
        (f"{OF_SLIMES} --rm-type math --max-staleness 2", False),
        (f"{OF_SLIMES} --preset search-r1-local", False),
        (f"{FEW} --eps-clip 0.3 --rm-type math", False),
        (f"{FEW.removeprefix('--num-rollout 3 ')} {MARK}", False),
    ],
)
def test_many_flags_of_slimes_with_a_mark_and_none_of_agentrls_alone_are_slimes(
    argv: str, is_slimes: bool
) -> None:
    model = [] if "--preset" in argv else FROM
    notes = "\n".join(parse([*BASE, *model, *argv.split()], "train_async").notes)
    assert ("docs/from-slime.md" in notes) == is_slimes
    assert ("--use-tis is on (slime: off)" in notes) == is_slimes


def test_the_time_of_ppo_is_told_where_an_episode_has_tools() -> None:
    ppo = "--balance-data --advantage-estimator ppo"
    in_turns = "\n".join(parsed([*ppo.split(), "--gamma", "0.9"]).notes)
    assert "--advantage-estimator ppo: advantages run over sampled tokens alone" in in_turns
    assert "--gamma discounts over sampled tokens alone (slime: over what tools" in in_turns
    for others in (["--balance-data"], [*FROM, *ppo.split()]):
        assert "over sampled tokens alone" not in "\n".join(parsed(others).notes)


def test_what_is_rendered_is_told_only_where_slime_would_not_render_it(tmp_path: Path) -> None:
    rows, mine = tmp_path / "rows.jsonl", tmp_path / "mine.py"
    rows.write_text('{"input": "x", "label": "y"}\n')
    mine.write_text("async def generate(args, sample, sampling_params): ...\n")
    argv = ["--hf-checkpoint", str(MODEL), "--prompt-data", str(rows), "--device", "cpu"]
    argv += ["--rollout-max-response-len", "64", "--balance-data"]
    told = "text under --input-key is rendered as a message of the user"
    assert told in "\n".join(parse(argv, "train").notes)
    rendered = "\n".join(parse([*argv, "--apply-chat-template"], "train").notes)
    assert (
        "--apply-chat-template: already so: prompts are always rendered, as the model's chat "
        "template writes them unless --chat-format or --chat-template says otherwise"
    ) in rendered
    assert told not in rendered
    of_function = parse([*argv, "--custom-generate-function-path", str(mine)], "train")
    assert told not in "\n".join(of_function.notes)


# ---- numbers that stand for something in slime ---------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--num-rollout 0", "slime scores the model then, and trains nothing: --eval-only does"),
        ("--rollout-num-gpus 0", "this waits for other dumps than whole iterations of rollouts"),
        ("--eval-top-k 0", "leaves no token to choose from; give 1 or more, or -1 for all of them"),
    ],
)
def test_a_number_that_stands_for_something_in_slime_is_not_called_out_of_bounds(
    argv: str, said: str
) -> None:
    words = refusal(argv.split())
    assert f"{argv}" in words
    assert said in words
    assert "Expected" not in words


def test_the_first_checkpoint_of_slime_is_that_of_iteration_0(tmp_path: Path) -> None:
    (tmp_path / "iter_0000000").mkdir()
    resolved = parsed(["--ref-load", str(tmp_path), "--ref-ckpt-step", "0"])
    assert f"--ref-ckpt-step 0: {tmp_path / 'iter_0000000'}" in resolved.notes
    assert "0 or more" in refusal(["--ref-load", str(tmp_path), "--ref-ckpt-step", "-1"])
