"""The command line: a flag per field, three families, help pages, what unknown flags are told."""

from pathlib import Path

import pytest

from agentrl.config import answers, passthrough, peers
from agentrl.config.command_line import help_page, known_flags, read_flags
from agentrl.config.fields import own_fields
from agentrl.config.megatron import about_settings
from agentrl.config.passthrough import FAMILIES
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

pytestmark = pytest.mark.slow

MODEL_ARGS = """
    --swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --use-rotary-position-embeddings
    --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 1000000
    --vocab-size 151936 --kv-channels 128 --qk-layernorm
"""


def test_every_field_of_the_run_configuration_is_a_flag_or_a_family() -> None:
    assert {*own_fields(), *FAMILIES} == set(RunConfig.__struct_fields__)


def test_no_spelling_is_taken_twice() -> None:
    flags = known_flags()
    assert len(flags) == len(set(flags))


def test_every_own_flag_is_on_the_main_page_with_its_help() -> None:
    page = help_page(["--help"], "train_async")
    assert page is not None
    words = " ".join(page.split())
    for field in own_fields().values():
        assert field.flag in words
        assert field.help in words


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_page_of_its_own(family: str) -> None:
    page = help_page(["--help", family], "train")
    assert page is not None
    assert "--rollout-batch-size" not in page


def test_an_unknown_page_is_refused_by_naming_the_pages() -> None:
    with pytest.raises(ConfigError, match="agentrl, megatron, sglang, router"):
        help_page(["--help", "slang"], "train")


def test_without_help_there_is_no_page() -> None:
    assert help_page(["--num-rollout", "3"], "train_async") is None


def test_a_slime_model_file_lands_in_the_megatron_family() -> None:
    values = read_flags(MODEL_ARGS.split()).values
    assert values.keys() == {"megatron"}
    assert values["megatron"]["num_layers"] == 36
    assert values["megatron"]["swiglu"] is True
    assert values["megatron"]["norm_epsilon"] == 1e-6
    assert len(values["megatron"]) == 15


def test_sglang_and_router_flags_lose_their_prefix_and_aliases() -> None:
    argv = ["--sglang-mem-fraction-static", "0.5", "--sglang-tensor-parallel-size", "2"]
    given = read_flags([*argv, "--router-policy", "manual"])
    assert given.values["sglang"] == {"mem_fraction_static": 0.5, "tp_size": 2}
    assert given.values["router"] == {"policy": "manual"}
    assert given.said["sglang"] == "--sglang-mem-fraction-static, --sglang-tp-size"


def test_an_own_flag_hides_the_same_name_of_a_family() -> None:
    given = read_flags(["--lr", "1e-4", "--sglang-server-concurrency", "8"])
    assert given.values == {"lr": 1e-4, "sglang_server_concurrency": 8}


def test_booleans_have_a_negative_spelling_in_every_family() -> None:
    given = read_flags(["--no-use-tis", "--no-bf16", "--sglang-no-enable-tf32-matmul"])
    assert given.values == {
        "use_tis": False,
        "megatron": {"bf16": False},
        "sglang": {"enable_tf32_matmul": False},
    }
    assert given.said["use_tis"] == "--no-use-tis"


def test_a_negative_number_is_a_value_in_every_notation() -> None:
    assert read_flags(["--rollout-top-k", "-1"]).values == {"rollout_top_k": -1}
    for word in ("-1e-6", "-1E-6", "-.5e-2", "-1.", "-1.5e+3", "-0.5"):
        given = read_flags(["--entropy-coef", word, "--moe-aux-loss-coeff", word])
        assert given.values["entropy_coef"] == float(word)
        assert given.values["megatron"] == {"moe_aux_loss_coeff": float(word)}
        assert given.refused == []
        (line,) = read_flags(["--eval-min-new-tokens", word]).refused  # a flag of the table alone
        assert line.startswith(f"--eval-min-new-tokens {word}: ")
    with pytest.raises(ConfigError, match="--lr cannot be '-1e-6': Expected `float` >= 0"):
        parse(["--lr", "-1e-6"], "train_async")


def test_a_number_is_read_as_python_reads_it() -> None:
    for word in (".98", "1.", "1e-3"):
        given = read_flags(["--entropy-coef", word, "--moe-aux-loss-coeff", word])
        assert given.values["entropy_coef"] == float(word)
        assert given.values["megatron"] == {"moe_aux_loss_coeff": float(word)}
        assert given.refused == []


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_refused(word: str, tmp_path: Path) -> None:
    said = "cannot be '" + word + "': it wants a finite number"
    given = read_flags(["--tis-clip", word, "--moe-aux-loss-coeff", word])
    assert given.refused == [f"--tis-clip {said}", f"--moe-aux-loss-coeff {said}"]
    file = tmp_path / "mine.toml"
    file.write_text(f"entropy_coef = {word}\n")
    with pytest.raises(ConfigError, match=r"--entropy-coef cannot be .*: it wants a finite number"):
        parse(["--config", str(file)], "train_async")


def test_the_last_of_two_equal_flags_wins() -> None:
    assert read_flags(["--seed", "1", "--seed", "2"]).values == {"seed": 2}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--rollout-batchsize 3", "did you mean --rollout-batch-size"),
        ("--use-dynamic-batchsize", "did you mean --use-dynamic-batch-size"),
        ("--colocat", "did you mean --colocate"),
        ("--sglang-tpsize 2", "--sglang-tp-size"),
        ("--max-weight-staleness 3", "--max-staleness"),
        ("--max_head_offpolicyness=4", "--max-staleness"),
        ("--rm-typ math", "did you mean --rm-type"),
        ("--rollout-batch 3", "--rollout-batch-size"),
        ("--no-save", "unknown flag --no-save; --save takes a value: leave it out instead"),
        ("--no_num_rollout", "--num-rollout takes a value: leave it out instead"),
        ("--num-rollout", "--num-rollout"),
        ("3", "unexpected argument '3'"),
    ],
)
def test_a_wrong_argument_is_told_what_to_write(argv: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv.split(), "train_async")
    assert said in str(caught.value)


def hints(name: str) -> list[str]:
    (line,) = read_flags([name, "1"]).refused
    _, _, said = line.partition("did you mean ")
    return said.removesuffix("?").split(", ") if said else []


def test_a_hint_names_what_was_misspelt_and_nothing_that_is_only_alike() -> None:
    assert hints("--ref-laod") == ["--ref-load"]
    assert hints("--rollout-batch") == ["--rollout-batch-size"]
    assert hints("--ref-tensor-model-parallel-size") == []
    assert hints("--custom-agent-function-path") == ["--custom-generate-function-path"]
    assert hints("--custom-ti-function-path") == ["--custom-tis-function-path"]
    for name in ("--ref-model", "--use-critic", "--wandb-name", "--rank", "--lora-rank", "--fsdp"):
        assert hints(name) == []
    for own in peers.settings().values():
        for setting, advice in own.items():
            name = "--" + setting.split(".")[-1].replace("_", "-")
            refused = read_flags([name, "1"]).refused
            close = hints(name) if refused and "unknown flag" in refused[0] else []
            if close == ["--num-gpus-per-node"]:  # of slime, and as little needed
                continue
            assert all(hint.removeprefix("--") in advice.says for hint in close), (setting, close)


def test_a_name_of_megatron_that_is_not_supported_is_no_misspelling_of_another() -> None:
    for flag in passthrough.table("megatron").flags:
        assert "did you mean" not in "".join(about_settings({flag.key: True}))


def test_all_that_is_refused_on_a_command_line_is_told_at_once() -> None:
    argv = (
        "--release-train --epsclip 0.1 --max-turns 0 --eps-clip nonsense --tis-clip 5 --no-use-tis"
    )
    argv += " --rollout-top-p 0.9 --sglang-host here --sglang-port 3 --router-port 3"
    argv += " --use-opd --hidden-dropout 0.1"
    with pytest.raises(ConfigError) as caught:
        parse(argv.split(), "train_async")
    assert [
        line.split(":")[0].split(" is ")[0].strip() for line in str(caught.value).splitlines()
    ] == [
        "unknown flag --epsclip; did you mean --eps-clip, --eps-clip-c?",
        "--max-turns cannot be '0'",
        "--eps-clip cannot be 'nonsense'",
        "--sglang-host",
        "--sglang-port",
        "--router-port",
        "--release-train",
        "--tis-clip",
        "--rollout-top-p 0.9 and --rollout-top-k -1",
        "--use-opd needs a teacher",
        "--hidden-dropout cannot be 0.1",
    ]


def switches() -> list[str]:
    """Flags that take no value."""
    own = [field.flag for field in own_fields().values() if field.kind == "bool"]
    own += [name for name, row in answers.rows().items() if row.takes == 0]
    return [*own, "--dry-run", "--bf16", "--sglang-enable-metrics"]


def test_no_flag_takes_the_one_behind_it_for_its_value() -> None:
    for name in (*known_flags(), *answers.rows()):
        refused = "\n".join(read_flags([name, "--release-train"]).refused)
        assert "--release-train" in refused or name == "--release-train", name


def test_a_flag_that_lacks_its_value_is_refused_by_its_name() -> None:
    for name in known_flags():
        given = read_flags([name])
        taken = [
            next(iter(v.values())) if isinstance(v, dict) else v for v in given.values.values()
        ]
        is_switch = given.dry_run or given.asked or taken == [True]
        assert is_switch or given.refused[0].startswith(f"{name} needs a value"), name


def test_a_flag_that_takes_no_value_names_the_one_it_got() -> None:
    for name in switches():
        for words in ([f"{name}=3"], [name, "3"]):
            refused = read_flags([*words, "--eps-clip", "x"]).refused
            assert len([line for line in refused if line.startswith(name)]) == 1, words
            assert "--eps-clip cannot be 'x'" in "\n".join(refused)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--lr", "--lr needs a value: FLOAT, learning rate"),
        ("--adam-eps", "--adam-eps needs a value: FLOAT, Adam epsilon"),
        ("--max-staleness", "--max-staleness needs a value: INT, S: greatest age"),
        ("--config", "--config needs a value: FILE"),
        ("--eval-prompt-data", "--eval-prompt-data needs a value: VALUE ..., evaluation sets"),
        ("--lr-decay-style", "--lr-decay-style needs a value: {constant,"),
        ("--sglang-cuda-graph-bs-decode", "--sglang-cuda-graph-bs-decode needs a value: INT ..."),
        ("--sglang-cuda-graph-bs", "--sglang-cuda-graph-bs needs a value (--sglang-cuda-graph-bs-"),
        ("--optimizer", "--optimizer needs a value: STR"),
        ("--", "unexpected argument '--'"),
    ],
)
def test_a_flag_without_its_value_is_told_what_it_needs(argv: str, said: str) -> None:
    assert said in "\n".join(read_flags([argv]).refused)
    assert said in "\n".join(read_flags([argv, "--kl-loss-coef", "3"]).refused)


def test_what_cannot_be_laid_together_hides_no_flag_that_is_refused() -> None:
    argv = "--resume nowhere --hidden-dropout 0.1 --moe-router-padding --sglang-port 3"
    with pytest.raises(ConfigError) as caught:
        parse([*argv.split(), "--router-host", "x", "--lr"], "train")
    for said in ("--resume nowhere", "--hidden-dropout", "--sglang-port", "--router-host", "--lr"):
        assert said in str(caught.value)


def test_what_the_synchronous_program_has_no_choice_of_hides_no_other() -> None:
    argv = "--async-buffer-size 3 --rollout-top-p 0.9 --hidden-dropout 0.1 --sglang-port 3"
    with pytest.raises(ConfigError) as caught:
        parse(argv.split(), "train")
    for flag in ("--async-buffer-size", "--rollout-top-p", "--hidden-dropout", "--sglang-port"):
        assert flag in str(caught.value)
