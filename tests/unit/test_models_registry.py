"""Which family a config.json is of, what refuses it, and what the listing holds. No torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agentrl.cli.train import main as train
from agentrl.errors import ConfigError
from agentrl.models import Family, Part
from agentrl.models.registry import describe_model, families, open_model
from agentrl.models.shapes import shapes_of
from agentrl.shipped import CHAT_FORMATS
from scripts.gen_models import page
from scripts.header_only import write_model

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
LLAMA = families()["llama"]


def written(path: Path, code: str) -> str:
    path.write_text(code)
    return str(path)


@pytest.mark.parametrize("name", families())
def test_a_family_is_listed_by_its_file_reads_its_tiny_member(name: str) -> None:
    family = families()[name]
    found = describe_model(dict(family.tiny), None, source="config.json")
    assert (family.name, found.family, found.architecture.name) == (
        name,
        family,
        family.architectures[0],
    )
    assert set(family.chat_formats) <= set(CHAT_FORMATS.places)


def test_the_page_lists_the_families_that_there_are_and_the_numbers_that_were_measured() -> None:
    assert page(PAGE) == PAGE, "python -m scripts.gen_models writes it"


def test_a_file_says_what_another_architecture_means(tmp_path: Path) -> None:
    code = (
        "from agentrl.models import Family\n"
        "from agentrl.models.decoder import PARTS, read_decoder\n"
        "FAMILY = Family(name='twin', architectures=('TwinForCausalLM',), read=read_decoder,\n"
        "                parts=PARTS)\n"
        "OTHER = 3\n"
    )
    place = written(tmp_path / "twin.py", code)
    config = {**LLAMA.tiny, "architectures": ["TwinForCausalLM"]}
    for given in (place, f"{place}:FAMILY"):
        assert describe_model(config, given, source="config.json").family.name == "twin"
    with pytest.raises(ConfigError, match="TwinForCausalLM is not supported"):
        describe_model(config, None, source="config.json")
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM is not one of.*TwinForCausalLM"):
        describe_model(dict(LLAMA.tiny), place, source="config.json")
    with pytest.raises(ConfigError, match="is 3, not a Family"):
        describe_model(config, f"{place}:OTHER", source="config.json")


def test_a_family_that_cannot_read_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    code = (
        "from agentrl.models import Family\n"
        "def read(config):\n"
        "    return config['hidden_size'] / config['num_labels_of_mine'].value\n"
        "FAMILY = Family(name='torn', architectures=('LlamaForCausalLM',), read=read, parts=())\n"
    )
    place = written(tmp_path / "torn.py", code)
    with pytest.raises(ConfigError, match=r"config\.json lacks 'num_labels_of_mine'"):
        describe_model(dict(LLAMA.tiny), place, source="config.json")
    with pytest.raises(ConfigError, match=r"family torn cannot read .*'int'.*torn\.py:3"):
        describe_model({**LLAMA.tiny, "num_labels_of_mine": 2}, place, source="config.json")


def test_parts_of_a_layer_stand_together_in_the_order_of_the_layers() -> None:
    part = Part("a.{layer}.x", ("h.{layer}.x",))
    table = (Part("in", ("i",)), part, Part("a.{layer}.y", ("h.{layer}.y",)), Part("out", ("o",)))
    family = msgspec.structs.replace(LLAMA, parts=table)
    keys = ["out", "a.10.x", "a.2.y", "in", "a.2.x"]
    named = {key: found for key in keys if (found := family.named(key)) is not None}
    assert sorted(keys, key=lambda key: named[key].order) == [
        "in",
        "a.2.x",
        "a.2.y",
        "a.10.x",
        "out",
    ]
    assert named["a.10.x"].hf == ("h.10.x",)
    assert isinstance(family, Family)
    assert family.named("a.x.y") is None


@pytest.mark.parametrize(
    ("window", "context", "is_refused"),
    [
        (512, 600, True),
        (512, 512, False),
        (None, 600, False),
    ],
)
def test_contexts_beyond_a_window_that_engines_do_not_have_are_refused_with_both_numbers(
    window: int | None,
    context: int,
    is_refused: bool,
    qwen_tokenizer_json: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {"vocab_size": 1024, "max_position_embeddings": 1024, "sliding_window": window}
    config = {**families()["mistral"].tiny, **sizes}
    written(tmp_path / "config.json", msgspec.json.encode(config).decode())
    write_model(tmp_path, shapes_of(open_model(tmp_path, None)))
    written(tmp_path / "tokenizer.json", qwen_tokenizer_json)
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    written(tmp_path / "tokenizer_config.json", json.dumps({"chat_template": template}))
    flags = ["--preset", "search-r1-local", "--hf-checkpoint", str(tmp_path), "--dry-run"]
    given = ["--rollout-max-context-len", str(context)]
    assert (train([*flags, *given], "train_async") != 0) is is_refused
    said = capsys.readouterr().err
    words = f"a context of {context} tokens is longer than the sliding window of {window}"
    assert (words in said) is is_refused


@pytest.mark.parametrize(("family", "is_refused"), [("llama", True), ("qwen3", False)])
def test_attention_is_data_parallel_only_where_sglangs_model_keeps_requests_apart(
    family: str,
    is_refused: bool,
    qwen_tokenizer_json: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {**families()[family].tiny, "vocab_size": 1024, "max_position_embeddings": 1024}
    written(tmp_path / "config.json", msgspec.json.encode(config).decode())
    write_model(tmp_path, shapes_of(open_model(tmp_path, None)))
    written(tmp_path / "tokenizer.json", qwen_tokenizer_json)
    flags = ["--preset", "search-r1-local", "--hf-checkpoint", str(tmp_path), "--dry-run"]
    given = ["--rollout-num-gpus-per-engine", "2", "--sglang-dp-size", "2"]
    given += ["--rollout-num-gpus", "2", "--sglang-enable-dp-attention"]
    train([*flags, *given], "train_async")
    said = capsys.readouterr().err
    words = "--sglang-dp-size 2: SGLang's LlamaForCausalLM is not known to keep the requests"
    assert (words in said) is is_refused


def test_weights_that_engines_keep_in_another_form_are_not_compared_with_the_learners(
    qwen_tokenizer_json: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**families()["gpt-oss"].tiny, "vocab_size": 1024, "max_position_embeddings": 1024}
    written(tmp_path / "config.json", msgspec.json.encode(config).decode())
    write_model(tmp_path, shapes_of(open_model(tmp_path, None)))
    written(tmp_path / "tokenizer.json", qwen_tokenizer_json)
    flags = ["--preset", "search-r1-local", "--hf-checkpoint", str(tmp_path), "--dry-run"]
    for given in ([], ["--check-weight-update-equal"]):
        train([*flags, *given], "train_async")
        said = capsys.readouterr().err
        assert ("SGLang keeps tensors of a GptOssForCausalLM transposed" in said) is bool(given)


@pytest.fixture
def quantized(tmp_path: Path, qwen_tokenizer_json: str) -> Callable[[str, str], str]:
    """The directory of a model of a family whose config.json says how it is quantized."""

    def make(family: str, kind: str) -> str:
        config = {**families()[family].tiny, "vocab_size": 1024, "max_position_embeddings": 1024}
        config["quantization_config"] = {"quant_method": kind}
        written(tmp_path / "config.json", msgspec.json.encode(config).decode())
        write_model(tmp_path, shapes_of(open_model(tmp_path, None)))
        written(tmp_path / "tokenizer.json", qwen_tokenizer_json)
        return str(tmp_path)

    return make


@pytest.mark.parametrize("mode", [[], ["--eval-only"]])
@pytest.mark.parametrize(("family", "kind"), [("qwen3", "fp8"), ("gpt-oss", "mxfp4")])
def test_a_run_whose_engines_would_be_quantized_and_its_pushes_not_is_refused(
    family: str,
    kind: str,
    mode: list[str],
    quantized: Callable[[str, str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = quantized(family, kind)
    flags = ["--preset", "search-r1-local", "--hf-checkpoint", place, *mode, "--dry-run"]
    assert train(flags, "train_async") != 0
    said = capsys.readouterr().err
    assert f"--hf-checkpoint {place} (quantization_config: {kind}): engines that serve" in said
    assert "cannot take those that the learner pushes, whatever --load names; give the same" in said
    assert "bfloat16" in said
    assert "--load a model" not in said


def test_families_load_neither_torch_nor_megatron() -> None:
    code = (
        "import sys\n"
        "from agentrl.models.registry import families\n"
        "assert families()\n"
        "heavy = {'torch', 'megatron', 'numpy', 'transformers', 'sglang'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
