"""Stand-ins for the tokenizers of the models that slime's scripts name: small, with the control
tokens of a model's family, and a chat template typed anew to the rules of the published one.

Of Kimi K2 Thinking, whose prompts begin as those of Kimi K2 Instruct, it is the latter's; GLM-5's
is that of GLM-4.7, for which nobody asks: the architecture is refused before.
"""

import json
import re
from pathlib import Path
from typing import Any

import agentrl
from agentrl.tokens.formats.load import format_class
from tests.parity.family_templates import TEMPLATES
from tests.parity.qwen_templates import QWEN

__all__ = ["write_tokenizer"]

_SHIPPED = Path(agentrl.__file__).parent / "envs/search_r1/model"

_MOONLIGHT = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_system|>system<|im_middle|>You are a helpful assistant provided by Moonshot-AI.' }}
    {{- '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' + message.content }}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}
"""


def _changed(template: str, old: str, new: str) -> str:
    if template.count(old) != 1:
        raise SystemExit(f"{old!r} has to stand once in the template that is changed")
    return template.replace(old, new)


def _qwen(system: str | None) -> str:
    return QWEN.replace("DEFAULT", "none" if system is None else f"'{system}'")


_THOUGHT = ("<think>", "</think>")
_QWEN_CALLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
#: As `Qwen3.5-0.8B` and 2B have it: a thought only where one is asked for.
_UNTHOUGHT = _changed(
    TEMPLATES["qwen3-5"],
    "'<|im_start|>assistant\\n<think>\\n' }}",
    "'<|im_start|>assistant\\n<think>\\n' }}"
    "{% if not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}",
)
#: GLM-Z1-0414 opens a thought where GLM-4-0414 opens a turn.
_GLM_Z1 = _changed(
    TEMPLATES["glm4"],
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}",
    "{%- if add_generation_prompt %}{{ '<|assistant|>\\n<think>' }}",
)


#: Qwen3 has a thought in each turn after the last question, be it an empty one; those of 2507 do
#: not think.
_QWEN3 = """
{%- set seen = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set seen.question = loop.index0 %}{% endif %}
{%- endfor %}
""" + _changed(
    _qwen(None),
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}",
    """{{- '<|im_start|>' + message.role + '\\n' }}
        {%- set thought = message.reasoning_content or '' %}
        {%- set shows = message.role == 'assistant' and loop.index0 > seen.question %}
        {%- if shows and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}""",
)


def _markers(name: str) -> tuple[str, ...]:
    return tuple(getattr(format_class(name), "MARKERS", ()))


#: Templates and control tokens by parts of a model's name.
_MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    r"DeepSeek-R1-Distill": (
        TEMPLATES["deepseek-r1"],
        tuple(text for text in _markers("deepseek-r1") if "tool" not in text),
    ),
    r"DeepSeek-R1": (TEMPLATES["deepseek-r1"], _markers("deepseek-r1")),
    r"Qwen2\.5-.*Instruct": (
        _qwen("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        _QWEN_CALLS[:2],
    ),
    r"Qwen2\.5-": (_qwen("You are a helpful assistant."), _QWEN_CALLS[:2]),
    r"MiMo-7B": (
        _qwen("You are MiMo, an AI assistant developed by Xiaomi."),
        (*_QWEN_CALLS, *_THOUGHT),
    ),
    r"Qwen3-.*Thinking": (TEMPLATES["qwen3-thinking"], (*_QWEN_CALLS, *_THOUGHT)),
    r"Qwen3\.5-(0\.8|2)B": (_UNTHOUGHT, (*_QWEN_CALLS, *_THOUGHT)),
    r"Qwen3\.[56]": (TEMPLATES["qwen3-5"], (*_QWEN_CALLS, *_THOUGHT)),
    r"Qwen3-.*Instruct": (_qwen(None), (*_QWEN_CALLS, *_THOUGHT)),
    r"[Qq]wen3-": (_QWEN3, (*_QWEN_CALLS, *_THOUGHT)),
    r"GLM-4\.[56]": (TEMPLATES["glm45"], _markers("glm45")),
    r"GLM-(4\.7|5)": (TEMPLATES["glm47"], _markers("glm47")),
    r"GLM-Z1": (_GLM_Z1, _markers("glm4")),
    r"GLM-4-": (TEMPLATES["glm4"], _markers("glm4")),
    r"Moonlight": (_MOONLIGHT, tuple(t for t in _markers("kimi-k2") if t.startswith("<|im_"))),
    r"Kimi-K2": (TEMPLATES["kimi-k2"], _markers("kimi-k2")),
    r"MiniMax-M2": (TEMPLATES["minimax-m2"], _markers("minimax-m2")),
}
_BEGINS = "<｜begin▁of▁sentence｜>"


def write_tokenizer(folder: Path) -> None:
    """Write the files of the tokenizer of the model whose checkpoint is `folder`, by its name."""
    found = (known for part, known in _MODELS.items() if re.search(part, str(folder)))
    template, tokens = next(found)
    described = json.loads((_SHIPPED / "tokenizer.json").read_text())
    _add(described, tokens)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config = json.loads((_SHIPPED / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    if _BEGINS in tokens:
        config["bos_token"] = _BEGINS
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _add(described: dict[str, Any], tokens: tuple[str, ...]) -> None:
    """Add control tokens to those that are there."""
    added = described["added_tokens"]
    known = {token["content"] for token in added}
    first = max(len(described["model"]["vocab"]), *(token["id"] + 1 for token in added))
    missing = [text for text in tokens if text not in known]
    for number, text in enumerate(missing, first):
        added.append({**added[-1], "id": number, "content": text})
