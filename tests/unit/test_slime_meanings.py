"""Flags that slime's scripts pass most, and that mean here what they mean there: of devices, rows
and turns. Those of training: test_slime_meanings_training.py."""

import random
import shutil
from pathlib import Path
from typing import cast

import pytest

from agentrl.actors.worker import WorkerSettings
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.config.plan import describe
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns, training_turns
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.messages import AssistantTurn, Message
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_source
from tests.unit.test_cluster_orders import MODEL, OneNode

pytestmark = pytest.mark.anyio


def run(*argv: str) -> RunConfig:
    return parse(["--device", "cpu", *argv], "train_async").config


def of_rows(path: Path, *argv: str) -> RunConfig:
    """A run of the rows in `path`, on a small model."""
    data = ["--hf-checkpoint", str(MODEL), "--prompt-data", str(path), "--env", "single-turn"]
    many = ["--n-samples-per-prompt", "2", "--num-rollout", "9"]
    return run(*data, *many, "--rollout-max-response-len", "64", *argv)


async def numbers(config: RunConfig, count: int) -> list[int]:
    """The first so many rows that the run is given."""
    found: list[int] = []
    async for task in open_source(config, load_env("single-turn")).tasks():
        found.append(task.row["n"])
        if len(found) == count:
            break
    return found


@pytest.fixture
def ten_rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"input": "q", "label": "a", "n": {n}}}\n' for n in range(10)))
    return path


def test_the_learner_has_a_rank_for_each_gpu_of_its_nodes() -> None:
    config = run("--actor-num-nodes", "2", "--actor-num-gpus-per-node", "4")
    assert config.num_learner_ranks == 8
    assert "8 ranks (2 nodes x 4)" in describe(config)


@pytest.mark.parametrize(("per_engine", "engines"), [(1, 8), (2, 4), (8, 1)])
def test_engines_share_out_the_gpus_of_rollouts(per_engine: int, engines: int) -> None:
    config = run("--rollout-num-gpus", "8", "--rollout-num-gpus-per-engine", str(per_engine))
    assert config.num_engines == engines
    assert f"{engines} SGLang of {per_engine} devices" in describe(config)


@pytest.mark.parametrize("steps", [["--num-steps-per-rollout", "4"], ["--global-batch-size", "64"]])
def test_an_iteration_is_groups_times_samples_in_so_many_steps(steps: list[str]) -> None:
    config = run("--rollout-batch-size", "32", "--n-samples-per-prompt", "8", *steps)
    assert "32 groups x 8 episodes = 256, in 4 optimizer steps" in describe(config)


async def test_keys_of_a_row_name_prompt_and_label(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2+2?", "answer": "4"}\n')
    model = run().hf_checkpoint
    data = ["--prompt-data", str(rows), "--input-key", "question", "--label-key", "answer"]
    lengths = ["--rollout-max-response-len", "64", "--n-samples-per-prompt", "2"]
    config = run("--hf-checkpoint", str(model), *data, *lengths)
    env = load_env(str(config.env))(**config.env_args)
    prompt = await env.reset(seed=0, task={"question": "2+2?", "answer": "4"})
    assert prompt == [Message.user("2+2?")]
    assert (await env.step(AssistantTurn("4", [], None, "stop", 0))).reward == 1.0
    assert (await env.step(AssistantTurn("5", [], None, "stop", 0))).reward == 0.0


def test_context_parallel_ranks_share_the_tokens_of_each_gpu() -> None:
    config = run(
        *("--max-tokens-per-gpu", "9216", "--context-parallel-size", "2"),
        *("--actor-num-gpus-per-node", "2"),
    )
    assert config.micro_batch_tokens == 2 * 9216


# ---- what a run is made of -----------------------------------------------------------------------


def test_a_model_gives_tokenizer_and_first_weights_to_every_engine(
    tmp_path: Path, ten_rows: Path
) -> None:
    config = of_rows(ten_rows, "--hf-checkpoint", str(MODEL), "--run-dir", str(tmp_path))
    with RunDir(config) as folder:
        spec, orders = plan_processes(config, folder, cast(Cluster, OneNode()), {}, "cpu")
    engines = [order.argv for order in orders if order.name.startswith("engine")]
    assert spec.model_dir == str(MODEL)
    assert [argv[argv.index("--model-path") + 1] for argv in engines] == [str(MODEL)]


async def test_rows_come_in_the_order_of_the_file_once_in_each_epoch(ten_rows: Path) -> None:
    assert await numbers(of_rows(ten_rows), 12) == [*range(10), 0, 1]
    sliced = of_rows(Path("unused"), "--prompt-data", f"{ten_rows}@[2:5]")
    assert await numbers(sliced, 7) == [2, 3, 4, 2, 3, 4, 2]


@pytest.mark.parametrize("seed", [42, 7])
async def test_the_order_of_each_epoch_is_that_of_slimes_generator(
    ten_rows: Path, seed: int
) -> None:
    wanted = []
    for epoch in range(3):
        order = list(range(10))
        random.Random(seed + epoch).shuffle(order)
        wanted += order
    given = [] if seed == 42 else ["--rollout-seed", str(seed)]
    assert await numbers(of_rows(ten_rows, "--rollout-shuffle", *given), 30) == wanted


async def test_text_of_a_row_is_what_the_user_says(ten_rows: Path) -> None:
    config = of_rows(ten_rows, "--apply-chat-template")
    env = load_env(str(config.env))(**config.env_args)
    assert await env.reset(seed=0, task={"input": "2+2?", "label": "4"}) == [Message.user("2+2?")]
    dialogue = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert await env.reset(seed=0, task={"input": dialogue, "label": "4"}) == [
        Message.system("Be brief."),
        Message.user("2+2?"),
    ]


def test_the_template_of_the_model_is_given_what_it_is_asked_with(
    ten_rows: Path, tmp_path: Path
) -> None:
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{{ begun or '' }}{% endif %}"
    )
    given = ["--chat-template", "own", "--apply-chat-template-kwargs"]
    prompts = []
    for words in ("{}", '{"begun": "I think"}'):
        chat = open_chat_format(chat_format_of(of_rows(ten_rows, *given, words)), tmp_path)
        spans = chat.open_prompt([Message.user("2+2?")])
        prompts.append(chat.vocab.decode([id_ for span in spans for id_ in span.ids]))
    assert prompts[0] == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert prompts[1] == prompts[0] + "I think"


async def test_a_reward_function_of_the_users_scores_each_answer(ten_rows: Path) -> None:
    code = ten_rows.with_name("mine.py")
    code.write_text("def share(text, label, task):\n    return text.count(label) / task['n']\n")
    config = of_rows(ten_rows, "--custom-rm-path", f"{code}:share")
    env = load_env(str(config.env))(**config.env_args)
    await env.reset(seed=0, task={"input": "q", "label": "a", "n": 4})
    assert (await env.step(AssistantTurn("a a b", [], None, "stop", 0))).reward == 0.5


# ---- how turns are sampled -----------------------------------------------------------------------


def test_a_turn_is_sampled_at_the_temperature_of_rollouts_and_cut_at_their_length() -> None:
    turns = training_turns(run("--rollout-temperature", "0.8", "--rollout-max-response-len", "99"))
    assert (turns.temperature, turns.max_new_tokens) == (0.8, 99)
    assert (turns.top_p, turns.top_k) == (1.0, -1)


def test_evaluations_are_sampled_as_rollouts_are_but_for_what_they_are_told(ten_rows: Path) -> None:
    usual = of_rows(ten_rows, "--rollout-temperature", "0.8")
    assert evaluation_turns(usual) == training_turns(usual)
    words = ["--eval-prompt-data", "held", str(ten_rows), "--rollout-temperature", "0.8"]
    told = of_rows(ten_rows, *words, "--eval-temperature", "0.2", "--eval-max-response-len", "50")
    assert evaluation_turns(told).temperature == 0.2
    assert evaluation_turns(told).max_new_tokens == 50
    assert training_turns(told) == training_turns(usual)


def test_the_context_of_rollouts_holds_prompt_and_answers_together() -> None:
    config = run("--rollout-max-context-len", "300", "--rollout-max-response-len", "64")
    limits = WorkerSettings.from_config(config, MODEL, 512, {}).limits
    assert limits.max_context == 300
    bounded = run("--rollout-max-prompt-len", "100", "--rollout-max-response-len", "64")
    limits = WorkerSettings.from_config(bounded, MODEL, 512, {}).limits
    assert (limits.max_prompt, limits.max_context) == (100, 512)
