"""The chat format of a run that names none: by hand, the model's own template, or refused."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

import agentrl.envs.search_r1
from agentrl.cli.train import main as train
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.envs.chat_formats import chat_format_of, open_chat_format, with_chat_format
from agentrl.errors import ConfigError
from agentrl.models.registry import families, open_model
from agentrl.models.shapes import shapes_of
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens import Message
from agentrl.tokens.found import find_format
from agentrl.tokens.templates.load import OWN, OwnTemplate
from scripts.header_only import write_model
from tests.conftest import tokenizer_json_for
from tests.parity.family_templates import TEMPLATES
from tests.parity.qwen_templates import QWEN

pytestmark = pytest.mark.slow

SHIPPED = Path(agentrl.envs.search_r1.__file__).parent / "model"
ALL = {**TEMPLATES, "qwen": QWEN.replace("DEFAULT", "none")}
#: Says who speaks in words that no format has.
UNKNOWN = """
{%- for message in messages %}
    {{- '<|im_start|>the ' + message.role + ': ' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>the assistant: ' }}{% endif %}
"""
#: The same, and it drops what was said before.
FORGETS = UNKNOWN.replace("in messages %}", "in messages[-2:] %}")
BOS = {"deepseek": "<｜begin▁of▁sentence｜>", "llama3": "<|begin_of_text|>", "mistral": "<s>"}
ONE_TURN = ["--env", "single-turn", "--num-rollout", "1", "--device", "cpu"]


def model(folder: Path, template: str, speaks: str = "qwen", family: str = "qwen2") -> Path:
    """A model of `family` with the tokens of a format, whose weights are headers alone."""
    folder.mkdir(exist_ok=True)
    config = {**families()[family].tiny, "vocab_size": 1024, "max_position_embeddings": 1024}
    (folder / "config.json").write_text(msgspec.json.encode(config).decode())
    write_model(folder, shapes_of(open_model(folder, None)))
    (folder / "tokenizer.json").write_text(tokenizer_json_for(speaks))
    begins = next((text for part, text in BOS.items() if speaks.startswith(part)), None)
    told = {"chat_template": template, "bos_token": begins}
    told |= {"eos_token": "</s>"} if begins == "<s>" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def rows(folder: Path) -> list[str]:
    path = folder / "rows.jsonl"
    path.write_text('{"input": [{"role": "user", "content": "2 + 2?"}], "label": "4"}\n' * 8)
    words = ["--prompt-data", str(path), "--rm-type", "math", "--rollout-batch-size", "2"]
    return [*words, "--n-samples-per-prompt", "2", "--rollout-max-response-len", "16"]


def configured(folder: Path, *flags: str) -> RunConfig:
    argv = ["--hf-checkpoint", str(folder), *ONE_TURN, *rows(folder), *flags]
    return parse(argv, "train_async").config


@pytest.mark.parametrize("name", ALL)
def test_the_format_whose_prompts_are_the_models_is_found_whatever_its_family(
    name: str, tmp_path: Path
) -> None:
    folder = model(tmp_path / "model", ALL[name], name)
    assert find_format(folder).wanted == name
    assert find_format(folder, tuple(CHAT_FORMATS.places)).wanted == name


def test_of_formats_that_open_a_turn_alike_it_is_the_one_that_writes_it_as_the_template_does(
    tmp_path: Path,
) -> None:
    """Those of 2507 do not think; the others write an empty thought."""
    usual = families()["qwen3"].chat_formats
    folder = model(tmp_path / "model", ALL["qwen"], "qwen3", "qwen3")
    assert find_format(folder, usual).wanted == "qwen"
    thinks = ALL["qwen"].replace(
        "'\\n' + message.content }}",
        "'\\n' + ('<think>\\n\\n</think>\\n\\n' if message.role == 'assistant' else '')"
        " + message.content }}",
    )
    assert thinks != ALL["qwen"]
    assert find_format(model(folder, thinks, "qwen3", "qwen3"), usual).wanted == "qwen3"


def test_a_model_that_slimes_scripts_name_starts_without_a_flag_and_is_told_its_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GLM-4.5 was refused: its template is none of ChatML."""
    folder = model(tmp_path / "model", TEMPLATES["glm45"], "glm45", "glm4-moe")
    argv = ["--hf-checkpoint", str(folder), *ONE_TURN, *rows(tmp_path), "--dry-run"]
    assert train(argv, "train_async") == 0
    said = capsys.readouterr().out
    assert said.count("chat format glm45: the files of the model show it\n") == 1
    assert 'chat_format = "glm45"' in said


def test_the_format_that_was_found_is_stored_and_read_again(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", TEMPLATES["qwen3-thinking"], "qwen3-thinking", "qwen3")
    config, notes = with_chat_format(configured(folder))
    assert (config.chat_format, len(notes)) == ("qwen3-thinking", 1)
    write_config(tmp_path / "config.toml", config)
    assert tomllib.loads((tmp_path / "config.toml").read_text())["chat_format"] == "qwen3-thinking"
    assert with_chat_format(config) == (config, [])
    chat = open_chat_format(chat_format_of(config), folder)
    ids = [id_ for span in chat.open_prompt([Message.user("2 + 2?")]) for id_ in span.ids]
    assert chat.vocab.decode(ids).endswith("<|im_start|>assistant\n<think>\n")


def test_a_template_that_nobody_knows_is_the_format_itself_where_it_only_appends(
    tmp_path: Path,
) -> None:
    folder = model(tmp_path / "model", UNKNOWN)
    config, (note,) = with_chat_format(configured(folder))
    assert (config.chat_format, config.chat_template) == (None, OWN)
    assert note == (
        f"--chat-template own: no --chat-format writes turns as the chat template of {folder} does"
    )
    assert chat_format_of(config) == chat_format_of(configured(folder))
    write_config(tmp_path / "config.toml", config)
    argv = ["--config", str(tmp_path / "config.toml"), "--device", "cpu"]
    assert parse(argv, "train_async").config.chat_template == OWN


def test_an_opened_thought_is_written_by_the_template_or_told_as_left_out(tmp_path: Path) -> None:
    """GLM-Z1: no format by hand opens it, and its template alone can where nobody answers."""
    thinks = TEMPLATES["glm4"].replace("{{ '<|assistant|>' }}", "{{ '<|assistant|>\\n<think>' }}")
    folder = model(tmp_path / "model", thinks, "glm4", "glm4")
    assert find_format(folder, is_one_turn=True).wanted == OwnTemplate(OWN, is_one_turn=True)
    found = find_format(folder)
    assert found.wanted == "glm4"
    assert "but for the end of a prompt: '\\n<think>' is left out" in found.why


def test_what_no_format_fits_is_refused_with_the_flag_and_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "model", FORGETS)
    with pytest.raises(ConfigError, match="does not only append") as caught:
        find_format(folder)
    assert "Give --chat-format qwen or qwen3 or " in str(caught.value)
    assert "--chat-template FILE" in str(caught.value)
    words = ["--hf-checkpoint", str(folder), "--env", "search-r1-local", "--device", "cpu"]
    words += ["--num-rollout", "1", "--n-samples-per-prompt", "2", "--dry-run"]
    assert train(words, "train_async") == 2
    assert "no --chat-format is known to be that of" in capsys.readouterr().err
    assert train([*words, "--chat-format", "qwen"], "train_async") == 0


def test_a_model_without_a_template_is_refused_unless_its_tokens_decide(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", "", "llama3", "llama")
    (folder / "tokenizer_config.json").write_text("{}")
    assert find_format(folder, families()["llama"].chat_formats).wanted == "llama3"
    (folder / "tokenizer.json").write_text(tokenizer_json_for("qwen"))
    with pytest.raises(ConfigError, match=r"has no chat template.*Give a --chat-format of yours"):
        find_format(folder)


def test_a_format_of_another_template_is_refused_with_the_one_that_fits(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", TEMPLATES["glm4"], "glm4", "glm4")
    with pytest.raises(ConfigError, match=r"is not of the chat format qwen; give --chat-format gl"):
        open_chat_format("qwen", folder)
    other = UNKNOWN.replace("im_start", "endoftext").replace("<|im_end|>", "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": other}))
    with pytest.raises(ConfigError, match="give --chat-template own, or leave --chat-format out"):
        open_chat_format("qwen", folder)


def test_the_model_that_ships_has_qwen_with_the_flag_and_without() -> None:
    argv = ["--device", "cpu"]
    found, _ = with_chat_format(parse(argv, "train_async").config)
    assert found == parse([*argv, "--chat-format", "qwen"], "train_async").config
    assert open_chat_format(chat_format_of(found), SHIPPED).__class__.__name__ == "QwenFormat"


@pytest.mark.parametrize(
    ("speaks", "named", "is_told"),
    [
        ("qwen3-thinking", "qwen", True),
        ("qwen3-thinking", "qwen3-thinking", False),
        ("qwen", "qwen3", True),
        ("qwen", "tags", True),
    ],
)
def test_a_format_that_writes_otherwise_than_the_model_is_told(
    speaks: str, named: str, is_told: bool, tmp_path: Path
) -> None:
    folder = model(tmp_path / "model", ALL[speaks], "qwen3-thinking", "qwen3")
    config, notes = with_chat_format(configured(folder, "--chat-format", named))
    assert config.chat_format == named
    said = f"{folder} is instructed in --chat-format {speaks}; this run writes turns as {named} "
    assert [note.startswith(said) for note in notes] == [True] * is_told


def test_a_file_of_before_names_qwen_beside_a_template(tmp_path: Path) -> None:
    """Each config.toml has said `qwen`, whether or not it was read."""
    path = tmp_path / "config.toml"
    config = parse(["--device", "cpu"], "train_async").config
    write_config(path, msgspec.structs.replace(config, chat_format="qwen", chat_template=OWN))
    again = parse(["--config", str(path), "--device", "cpu"], "train_async").config
    assert chat_format_of(again) == OwnTemplate(OWN)
