"""Builds the tokenizer of the default job's model into `agentrl/envs/search_r1/model/`.

    python -m scripts.default_job.build_tokenizer [--output DIR]

A byte-level BPE of 2,048 entries learnt from the text of the warm-start split alone, so no name of
the RL or evaluation splits is seen. Qwen's control tokens stand at the front, and the chat template
writes turns and tool calls as Qwen's does, but without a system block that lists tools: the model
knows its one tool by training.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl.envs.search_r1.facts import Split, facts
from agentrl.envs.search_r1.questions import ask
from scripts.default_job.places import MODEL_DIR

VOCAB_SIZE = 2048
MAX_LENGTH = 1024
ROLE_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ANSWER_TOKENS = ("<answer>", "</answer>")
WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_QUESTIONS = 20_000

CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def texts() -> Iterator[str]:
    """What the warm start reads and writes, without its control tokens."""
    rng = random.Random("search-r1-local/tokenizer")
    for fact in facts():
        if fact.split is Split.WARM:
            yield fact.passage
    for _ in range(NUM_QUESTIONS):
        question = ask(Split.WARM, rng)
        yield f"user\n{question.text}"
        for query in question.queries:
            yield f'\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n'
            yield "assistant\n"
        yield f" {question.answer} "


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCAB_SIZE,
        special_tokens=[*ROLE_TOKENS, *TAG_TOKENS, *ANSWER_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    # The trainer marks every control token as special; tags must survive a decode that skips those.
    state = json.loads(tokenizer.to_str())
    for entry in state["added_tokens"]:
        entry["special"] = entry["content"] in ROLE_TOKENS
    return Tokenizer.from_str(json.dumps(state))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=MODEL_DIR)
    options = parser.parse_args()
    tokenizer = build()
    options.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.output / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (options.output / "tokenizer_config.json").write_text(text, encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} tokens in {options.output}")


if __name__ == "__main__":
    main()
