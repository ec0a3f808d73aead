"""The command line: a flag per field, three families, help pages, what unknown flags are told."""

import pytest

from agentrl.config import spellings
from agentrl.config.command_line import help_page, known_flags, read_flags
from agentrl.config.fields import own_fields
from agentrl.config.passthrough import FAMILIES
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

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
    given = read_flags(["--no-use-tis", "--no-rope-fusion", "--sglang-no-enable-tf32-matmul"])
    assert given.values == {
        "use_tis": False,
        "megatron": {"rope_fusion": False},
        "sglang": {"enable_tf32_matmul": False},
    }
    assert given.said["use_tis"] == "--no-use-tis"


def test_a_negative_number_is_a_value() -> None:
    assert read_flags(["--rollout-top-k", "-1"]).values == {"rollout_top_k": -1}


def test_the_last_of_two_equal_flags_wins() -> None:
    assert read_flags(["--seed", "1", "--seed", "2"]).values == {"seed": 2}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--rollout-batchsize 3", "did you mean --rollout-batch-size"),
        ("--sglang-tpsize 2", "--sglang-tp-size"),
        ("--max-weight-staleness 3", "--max-staleness"),
        ("--max_head_offpolicyness=4", "--max-staleness"),
        ("--rm-type math", "--env"),
        ("--global-batch-size 64", "--num-steps-per-rollout"),
        ("--rollout-batch 3", "--rollout-batch-size"),
        ("--num-rollout", "--num-rollout"),
        ("3", "unexpected argument '3'"),
    ],
)
def test_a_wrong_argument_is_told_what_to_write(argv: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv.split(), "train_async")
    assert said in str(caught.value)


def test_all_that_is_refused_on_a_command_line_is_told_at_once() -> None:
    argv = "--global-batch-size 8 --epsclip 0.1 --max-turns 0 --eps-clip nonsense --kl-loss-coef 1"
    argv += " --rollout-top-p 0.9 --sglang-host here --sglang-port 3 --router-port 3"
    argv += " --num-experts 8 --hidden-dropout 0.1"
    with pytest.raises(ConfigError) as caught:
        parse(argv.split(), "train_async")
    assert [
        line.split(":")[0].split(" is ")[0].strip() for line in str(caught.value).splitlines()
    ] == [
        "unknown flag --global-batch-size",
        "unknown flag --epsclip; did you mean --eps-clip, --eps-clip-c, --eps-clip-high?",
        "--max-turns cannot be '0'",
        "--eps-clip cannot be 'nonsense'",
        "--kl-loss-coef",
        "--sglang-host",
        "--sglang-port",
        "--router-port",
        "--rollout-top-p 0.9 and --rollout-top-k -1",
        "--num-experts",
        "--hidden-dropout cannot be 0.1",
    ]


def test_advice_names_only_flags_that_exist_and_none_that_agentrl_has() -> None:
    known = set(known_flags())
    for name in [*spellings._RENAMED, *spellings._OTHERWISE]:
        assert f"--{name}" not in {field.flag for field in own_fields().values()}
        text = spellings.advice(name)
        assert text is not None
        for word in text.replace(";", " ").replace(",", " ").split():
            if word.startswith("--"):
                assert word in known, f"{name}: {word}"
