import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import QwenFormat, Vocab, load_format

Edit = Callable[[dict[str, Any]], object]


def edited(tokenizer_json: str, edit: Edit) -> str:
    description = json.loads(tokenizer_json)
    edit(description)
    return json.dumps(description)


def test_trusted_text_makes_control_ids_and_untrusted_text_does_not(qwen_vocab: Vocab) -> None:
    text = "<|im_start|>user\n<tool_call>x</tool_call><|im_end|>"
    assert set(qwen_vocab.encode_trusted(text)) & qwen_vocab.control_ids
    plain = qwen_vocab.encode_untrusted(text)
    assert not set(plain) & qwen_vocab.control_ids
    assert qwen_vocab.decode(plain) == text


def test_a_lone_surrogate_is_encoded_as_a_question_mark(qwen_vocab: Vocab) -> None:
    assert qwen_vocab.decode(qwen_vocab.encode_untrusted("a\ud800b")) == "a?b"


def test_a_missing_control_token_is_named(qwen_tokenizer_json: str) -> None:
    def forget(description: dict[str, Any]) -> None:
        description["added_tokens"] = [
            token for token in description["added_tokens"] if token["content"] != "<|im_end|>"
        ]

    vocab = Vocab(edited(qwen_tokenizer_json, forget), source="toy")
    with pytest.raises(ConfigError, match=r"toy lacks the control tokens <\|im_end\|> that .*qwen"):
        QwenFormat(vocab)


def test_a_control_token_that_merges_could_build_is_out_of_reach(qwen_tokenizer_json: str) -> None:
    def make_reachable(description: dict[str, Any]) -> None:
        model = description["model"]
        model["ignore_merges"] = True
        model["merges"] = [*model["merges"], ["<", "|"], ["<|", "|>"]]
        model["vocab"] |= {"<|": len(model["vocab"]), "<||>": len(model["vocab"]) + 1}
        id_ = model["vocab"]["<||>"]
        token = {**description["added_tokens"][0], "id": id_, "content": "<||>"}
        description["added_tokens"] = [token]
        model["merges"].insert(0, ["|", ">"])
        model["vocab"].setdefault("|>", id_ + 1)

    vocab = Vocab(edited(qwen_tokenizer_json, make_reachable), source="toy")
    assert vocab.encode_trusted("<||>") == [vocab.control["<||>"]]
    assert not set(vocab.encode_untrusted("<||>")) & vocab.control_ids
    assert vocab.decode(vocab.encode_untrusted("<||>")) == "<||>"


def test_truncation_and_padding_of_the_file_are_ignored(qwen_tokenizer_json: str) -> None:
    limits = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    vocab = Vocab(edited(qwen_tokenizer_json, lambda d: d.update(truncation=limits)))
    assert len(vocab.encode_untrusted("one two three four")) > 2


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["model"].update(type="Unigram"), "is a Unigram tokenizer"),
        (lambda d: d.pop("model"), "is not a tokenizer.json"),
        (lambda d: d["model"].pop("merges"), "needs BPE"),
        (lambda d: d["model"].update(vocab={}), "cannot be loaded"),
        (
            lambda d: d.update(
                pre_tokenizer={
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": False,
                    "use_regex": True,
                }
            ),
            "adds a prefix",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_made_safe_is_refused(
    qwen_tokenizer_json: str, edit: Edit, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Vocab(edited(qwen_tokenizer_json, edit), source="toy")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        Vocab.from_file(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not a tokenizer\.json"):
        Vocab.from_file(tmp_path)


def model_dir(path: Path, tokenizer_json: str, config: object) -> Path:
    (path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_format_takes_its_options_from_the_models_template(
    tmp_path: Path, qwen_tokenizer_json: str
) -> None:
    template = "{% if tools %}..{% endif %}<|im_start|>system\nYou are a helpful assistant."
    named = [{"name": "default", "template": template}, {"name": "rag", "template": ""}]
    chat = load_format("qwen", model_dir(tmp_path, qwen_tokenizer_json, {"chat_template": named}))
    assert isinstance(chat, QwenFormat)
    assert chat.tools_in_prompt
    assert chat.default_system == "You are a helpful assistant."
    (tmp_path / "chat_template.jinja").write_text("<|im_start|>{{ tool_calls }}", encoding="utf-8")
    chat = load_format("qwen", tmp_path)
    assert isinstance(chat, QwenFormat)
    assert not chat.tools_in_prompt
    assert chat.default_system is None


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("qwen", {}, "has no chat template"),
        ("qwen", {"chat_template": "<|user|>"}, "is not of the chat format qwen"),
        ("qwen", [], "cannot read the chat template"),
        ("esperanto", {}, "no chat format 'esperanto'"),
    ],
)
def test_a_model_of_another_format_is_refused(
    tmp_path: Path, qwen_tokenizer_json: str, name: str, config: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_format(name, model_dir(tmp_path, qwen_tokenizer_json, config))
