"""A served teacher is looked at before anything starts."""

import json
from pathlib import Path

import pytest

from agentrl.cli.teacher import ask_teacher
from agentrl.cluster.spec import read_model_facts
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.tokens import Vocab
from tests.unit.teacher_server import TeacherServer

pytestmark = pytest.mark.anyio

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])


def config(url: str, **flags: object) -> RunConfig:
    told = {"use_opd": True, "opd_type": "sglang", "rm_url": url, "hf_checkpoint": MODEL}
    return RunConfig(**told, **flags)  # type: ignore[arg-type]


def other_vocabulary() -> Vocab:
    """In which two words have changed places."""
    description = json.loads(Path(MODEL, "tokenizer.json").read_text())
    words = description["model"]["vocab"]
    words["e"], words["a"] = words["a"], words["e"]
    return Vocab(json.dumps(description))


async def test_a_teacher_of_the_same_vocabulary_is_taken() -> None:
    async with TeacherServer(vocab=Vocab.from_file(MODEL)).at() as url:
        assert await ask_teacher(config(url)) == []


async def test_a_teacher_of_another_vocabulary_is_refused_by_its_name() -> None:
    async with TeacherServer(vocab=other_vocabulary()).at() as url:
        with pytest.raises(ConfigError, match="teacher its/model has another vocabulary") as caught:
            await ask_teacher(config(url))
    assert MODEL in str(caught.value)


async def test_a_teacher_whose_vocabulary_cannot_be_seen_is_noted() -> None:
    async with TeacherServer().at() as url:
        (note,) = await ask_teacher(config(url))
    assert "it has no tokenizer, and its/model cannot be read here" in note


async def test_a_teacher_that_reads_too_few_tokens_is_refused() -> None:
    server = TeacherServer(vocab=Vocab.from_file(MODEL))
    server.max_input_tokens = 101
    async with server.at() as url:
        assert await ask_teacher(config(url, rollout_max_context_len=100)) == []
        with pytest.raises(ConfigError, match="reads at most 100 tokens, and an episode may have"):
            await ask_teacher(config(url, rollout_max_context_len=101))


async def test_without_a_bound_episodes_may_fill_the_context_of_the_policy() -> None:
    context = read_model_facts(Path(MODEL), None).max_context
    server = TeacherServer(vocab=Vocab.from_file(MODEL))
    async with server.at() as url:
        server.max_input_tokens = context - 99
        with pytest.raises(ConfigError, match=f"have {context} .the context of --hf-checkpoint"):
            await ask_teacher(config(url))
        assert await ask_teacher(config(url, rollout_max_context_len=context - 100)) == []
        server.max_input_tokens = context - 6
        (note,) = await ask_teacher(config(url))
        assert f"with --rollout-max-context-len {context - 7} none has more" in note


async def test_a_teacher_that_is_not_there_is_told_before_the_start() -> None:
    absent = config("http://127.0.0.1:9/generate")
    with pytest.raises(ConfigError, match="start the teacher first"):
        await ask_teacher(absent)
    secret = config("http://me:secret@127.0.0.1:9?key=secret")
    with pytest.raises(ConfigError, match="start the teacher first") as caught:
        await ask_teacher(secret)
    assert "secret" not in str(caught.value)
    (note,) = await ask_teacher(absent, dry_run=True)
    assert note.startswith("--rm-url http://127.0.0.1:9/generate: not checked, and a run needs it")
