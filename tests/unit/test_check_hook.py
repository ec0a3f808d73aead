"""`agentrl check-hook` on a hook of each kind: one that works is shown, and what is wrong with
another is told with its line."""

import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.table import HOOKS
from tests.unit.hook_trials import tried

pytestmark = pytest.mark.slow

ASK = """\
from slime.utils.http_utils import post
from slime.rollout.sglang_rollout import GenerateState
sample.tokens = GenerateState(args).tokenizer(sample.prompt)["input_ids"]
url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
asked = {"text": sample.prompt, "sampling_params": sampling_params, "return_logprob": True}
output = await post(url, asked)
pairs = output["meta_info"]["output_token_logprobs"]
sample.append_response_tokens(args, tokens=[pair[1] for pair in pairs],
    log_probs=[pair[0] for pair in pairs], meta_info=output["meta_info"], text=output["text"])
"""
#: The same for all samples of some groups, in a function that is not async.
ASK_ALL = """\
from slime.utils.async_utils import run
async def ask(sample, sampling_params):
"""
ASK_ALL += "".join(f"    {line}\n" for line in ASK.splitlines())
ASK_ALL += "for sample in sum(groups, []):\n    run(ask(sample, args.sampling_params))\n"
#: The class that a method stands in, by hook.
BASES = {
    "advantage-estimator": "from agentrl.algorithms.base import Algorithm\nclass f(Algorithm):\n",
    "data-source-path": "from slime.rollout.data_source import *\nclass f(RolloutDataSource):\n",
}


class Case(NamedTuple):
    """A way to write a hook: its head, a body that works and part of what is then said, a body that
    gives what it may not and part of what is told."""

    hook: str
    head: str
    good: str
    says: str
    wrong: str
    told: str


CASES = [
    Case(
        "custom-rm-path", "def f(text, label, task)",
        "return float(text == label)", "'4' is worth 1\n",
        "return float('nan')", "on the answer '4': env_error: EnvError: f returned nan",
    ),
    Case(
        "custom-rm-path", "async def f(text, label, task)",
        "return 0.5", "'' is worth 0.5",
        "return 'much'", "much",
    ),
    Case(
        "custom-rm-path", "def f(args, sample)",
        "return args.rollout_batch_size + float(sample.label in sample.response)",
        "f(args, sample), slime's",
        "return [1, 2]", "[1, 2]",
    ),
    Case(
        "custom-rm-path", "async def f(args, sample, **kwargs)",
        "return float(sample.label in sample.response)", "do not know.' is worth 0",
        "return {'score': 1.0}", "--reward-key",
    ),
    Case(
        "group-rm", "def f(texts, label, task)",
        "return [float(len(text)) for text in texts]", "f(texts, label, task), ours",
        "return [1.0]", "f returned a list of 1; return a list of 4",
    ),
    Case(
        "group-rm", "async def f(args, samples, **kwargs)",
        "return [float(sample.index) for sample in samples]", "f(args, samples), slime's",
        "return [1.0] * 4", "f returned a list of 4; return a list of 1",
    ),
    Case(
        "rollout-sample-hook-path", "async def f(args, sample, *, evaluation=False)",
        "assert sample.response.startswith(sample.label)\nsample.reward = 0.25 + evaluation",
        "one of an evaluation: terminated, reward 1.25",
        "return 'much'", "mine.py:f returned[0] str 'much'; return the sample",
    ),
    Case(
        "dynamic-sampling-filter-path", "def f(rewards, task)",
        "return max(rewards) > min(rewards), 'equal'", "[0, 0, 0, 0] is dropped (equal)",
        "return None", "return a bool or (bool, reason)",
    ),
    Case(
        "dynamic-sampling-filter-path", "def f(args, samples, **kwargs)",
        "return samples[0].reward == 1.0", "[1, 0, 0, 0] is kept",
        "return 7", "return a bool or (bool, reason)",
    ),
    Case(
        "custom-generate-function-path", "async def f(args, sample, sampling_params)",
        f"{ASK}return sample", "1 turns",
        "return None", "return the sample, or a list of samples",
    ),
    Case(
        "custom-generate-function-path",
        "async def f(args, sample, sampling_params, evaluation=False)",
        f"{ASK}sample.reward = 2.0 + evaluation\nreturn [sample]", "of an evaluation: terminated, "
        "reward 3",
        f"{ASK}sample.tokens[-1] += 1\nreturn sample", "sample 0",
    ),
    Case(
        "rollout-function-path", "def f(args, rollout_id, data_source, evaluation=False)",
        "groups = data_source.get_samples(args.rollout_batch_size)\n"
        f"{ASK_ALL}return groups",
        "a group of 4 episodes: rewards [0, 0, 0, 0], 8 tokens are trained",
        "return data_source.get_samples(1)[0]", "or a list of groups",
    ),
    Case(
        "rollout-function-path", "def f(args, rollout_id, data_source, evaluation=False)",
        "data_source.get_samples(args.rollout_batch_size)\nreturn []",
        "a group of 4 episodes is taken and left out of what is returned: filtered",
        "return 1 / 0", "ZeroDivisionError",
    ),
    Case(
        "eval-function-path", "def f(args, rollout_id, data_source, evaluation=True)",
        'return {"held": {"rewards": [1, 0], "truncated": [False, True]}}',
        "set held: rewards [1, 0], 1 of 2 truncated",
        'return {"held": {"rewards": [float("nan")]}}', "set held: rewards[0] is nan",
    ),
    Case(
        "custom-reward-post-process-path", "def f(groups)",
        "return [[0.5] * len(group.rewards) for group in groups]", "its last result: [[0.5,",
        "return [[1.0]]", "there are rewards for [1] episodes",
    ),
    Case(
        "custom-reward-post-process-path", "def f(args, samples)",
        "rewards = [sample.reward for sample in samples]\nreturn rewards, rewards", "slime's",
        "return [1.0]", "return (raw_rewards, rewards)",
    ),
    Case(
        "custom-advantage-function-path", "def f(rows)",
        "return [row.credit.value * row.columns['mask'] for row in rows]", "ndarray[",
        "return []", "the advantages are no list of",
    ),
    Case(
        "custom-advantage-function-path", "def f(args, rollout_data)",
        "masks = rollout_data['loss_masks']\nrollout_data['advantages'] = [m * 1.0 for m in masks]",
        "its last result: [Tensor[",
        "pass", 'rollout_data["advantages"] is no list of tensors',
    ),
    Case(
        "custom-loss-function-path", "def f(micro_batch, logprobs_T, entropy_T)",
        "loss = -(logprobs_T * micro_batch.columns['mask']).sum()\n"
        "return loss, {'loss': loss.detach()}",
        "its last result: [",
        "return logprobs_T, {}", "a finite scalar is wanted",
    ),
    Case(
        "custom-loss-function-path", "def f(args, batch, logits, sum_of_sample_mean)",
        "from slime.backends.megatron_utils.loss import get_responses\n"
        "lengths = [batch[name] for name in ('total_lengths', 'response_lengths')]\n"
        "tokens = batch['unconcat_tokens']\n"
        "pairs = get_responses(logits, args=args, unconcat_tokens=tokens,\n"
        "    total_lengths=lengths[0], response_lengths=lengths[1])\n"
        "found = [each.log_softmax(-1).gather(1, ids[:, None])[:, 0] for each, ids in pairs]\n"
        "loss = -sum_of_sample_mean(__import__('torch').cat(found))\n"
        "return loss, {'loss': loss.detach()}",
        "slime's",
        "return logits.sum(), 3", "its metrics are a int; a dict by name is wanted",
    ),
    Case(
        "custom-tis-function-path", "def f(trained)",
        "return trained.mu_K.exp()", "its last result: Tensor[",
        "return trained.mu_K", "0 or more is wanted",
    ),
    Case(
        "custom-tis-function-path", "def f(args, *, pg_loss, loss_masks, **kwargs)",
        "return pg_loss * 0.5, loss_masks, {}", "slime's",
        "return pg_loss", "(pg_loss, loss_masks, metrics) is wanted",
    ),
    Case(
        "custom-pg-loss-reducer-function-path",
        "def f(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)",
        "return lambda losses: losses.sum() / 8", "its last result: ",
        "return 3", "a function of the losses is wanted",
    ),
    Case(
        "advantage-estimator", "    def values(self, rewards)",
        "return [reward - 1.0 for reward in rewards]", "a subclass of agentrl.algorithms.base",
        "return [float('nan')] * len(rewards)", "one is nan; a credit must be a finite number",
    ),
    Case(
        "data-source-path", "    def get_samples(self, num_samples)",
        "groups = super().get_samples(num_samples)\n"
        "for group in groups:\n    group[0].label = '4'\n"
        "return groups",
        'sample:1: {"input":"What is 2 + 2?","label":"4"}',
        "return None", "returned None after 0 groups; return a list of groups",
    ),
    Case(
        "rollout-sample-filter-path", "def f(args, groups)",
        "for group in groups:\n    group[0].remove_sample = True", "at last it removed 3 of ",
        "groups[0][0].reward = 5.0", "it changed the reward of episode",
    ),
    Case(
        "custom-convert-samples-to-train-data-path", "def f(args, samples)",
        "from slime.utils.types import Sample\n"
        "assert all(isinstance(s, Sample) and s.label == '4' for s in samples)\n"
        "kept = samples[:4]\n"
        "indices = [s.index for s in kept]\n"
        "return {'rewards': [1.5 for _ in kept], 'sample_indices': indices, 'b': 1, 'a': 2}",
        "worth [1.5, 1.5, 1.5, 1.5]\nnothing reads what it returned as a, b",
        "return [sample.reward for sample in samples]", "it returned a list; a dict is wanted",
    ),
    Case(
        "rollout-data-postprocess-path", "def f(args, rollout_id, rollout_data)",
        "rollout_data['advantages'] = [a * 0 + 7 for a in rollout_data['advantages']]",
        '"advantages"] was [Tensor[',
        "rollout_data['advantages'] = 7", 'rollout_data["advantages"] is no list of ',
    ),
    Case(
        "custom-rollout-log-function-path", "def f(rollout_id, args, samples, extra, seconds)",
        "from slime.utils.logging_utils import log\n"
        "whole = [s for s in samples if s.response.startswith('4') and s.label == '4']\n"
        "assert '2 + 2' in whole[0].prompt and whole[0].status is whole[0].Status.COMPLETED\n"
        "assert len(whole[0].rollout_log_probs) == sum(whole[0].loss_mask) > 1\n"
        "log(args, {'mine/whole': len(whole), 'rollout/step': rollout_id}, 'rollout/step')\n"
        "extra['mine/more'] = 0.5",
        "given 4 samples, it logged {mine/whole: 1, mine/more: 0.5}",
        "extra['mine/word'] = 'much'",
        "left out was mine/word (str): what is logged are finite numbers",
    ),
    Case(
        "custom-eval-rollout-log-function-path", "def f(rollout_id, args, data, extra)",
        "from slime.observability.logging_utils import log\n"
        "answers = [sample.response for sample in data['tried']['samples']]\n"
        "log(args, {'mine/whole': answers.index('4')})\n"
        "return True",
        "it returned True: TensorBoard and trackers get these in place of eval/*",
        "return data['tried']['samples'][0].tokens", "a sample of an evaluation has no 'tokens'",
    ),
    Case(
        "rollout-all-samples-process-path", "def f(args, all_samples, data_source)",
        "from slime.observability.logging_utils import log\n"
        "assert [s.index for group in all_samples for s in group] == [*range(8)]\n"
        "dropped = [group for group in all_samples if not group[0].kept]\n"
        "assert '4' in [sample.response for sample in dropped[0]]\n"
        "log(args, {'mine/dropped': len(dropped)})",
        "given 2 groups of 4 samples, it logged {mine/dropped: 1}",
        "data_source.add_samples(all_samples)", "EnvError: data_source gives a function of --roll",
    ),
    Case(
        "buffer-filter-path", "def f(args, rollout_id, buffer, num_samples)",
        "assert [len(group) for group in buffer] == [args.n_samples_per_prompt] * 2\n"
        "return [buffer.pop() for _ in range(num_samples)]",
        "the first group waits\nthe second group is played next",
        "return buffer[0]", "it returned a group that is not in buffer; return the lists that are",
    ),
    Case(
        "custom-megatron-init-path", "def f(args)",
        "assert args.n_samples_per_prompt == 4", "called with args, without",
        "return args.no_such_flag", "; a run has Megatron's process groups by then",
    ),
    Case(
        "custom-update-weight-post-write-path", "def f(args, version_dir, rollout_engines)",
        "assert not [*__import__('pathlib').Path(version_dir).iterdir()]", "an empty folder weight",
        "rollout_engines[1]", "IndexError: list index out of range",
    ),
]  # fmt: skip
#: Hooks that are given what only a run has: they are loaded, and not called.
NOT_CALLED = {
    "custom-megatron-before-log-prob-hook-path": "def f(args, model, store_prefix)",
    "custom-megatron-before-train-step-hook-path": "def f(args, rollout_id, step_id, model, *rest)",
}
EACH = pytest.mark.parametrize("case", CASES, ids=[f"{c.hook}: {c.head.strip()}" for c in CASES])


def written(folder: Path, case: Case, body: str) -> str:
    """The path of a file with the hook of that body."""
    margin = " " * (len(case.head) - len(case.head.lstrip()) + 4)
    lines = "\n".join(margin + line for line in body.splitlines())
    above = BASES.get(case.hook, "")
    (folder / "mine.py").write_text(f"{above}{case.head}:\n{lines}\n")
    return f"{folder / 'mine.py'}:f"


def test_each_hook_has_a_case() -> None:
    assert {case.hook for case in CASES} | NOT_CALLED.keys() == HOOKS.keys()


@EACH
def test_one_that_works_is_shown(case: Case, tmp_path: Path) -> None:
    found = tried(tmp_path, case.hook, written(tmp_path, case, case.good))
    assert (found.error, found.exit_code) == ("", 0)
    assert case.says in "\n".join(found.lines)


@EACH
def test_what_may_not_be_given_is_told(case: Case, tmp_path: Path) -> None:
    found = tried(tmp_path, case.hook, written(tmp_path, case, case.wrong))
    assert case.told in found.error
    assert found.exit_code in (2, 65)
    assert len(found.lines) == 1, "the signature is told all the same"


@EACH
def test_what_it_raises_is_told_with_its_line(case: Case, tmp_path: Path) -> None:
    found = tried(tmp_path, case.hook, written(tmp_path, case, "raise KeyError('boom')"))
    assert "KeyError: 'boom' (" in found.error
    line = 4 if case.hook in BASES else 2
    assert f"mine.py:{line})" in found.error
    assert found.exit_code in (2, 65)


@EACH
def test_where_it_stands_is_told_when_its_time_is_over(case: Case, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    is_async = case.head.startswith("async")
    body = (
        "import asyncio, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(over)!r}).exists():\n"
        f"    {'await asyncio.sleep(0.2)' if is_async else 'time.sleep(0.2)'}"
    )
    stood: list[str] = []

    def when_begun(ended: threading.Event, limit_s: float) -> bool:
        while not begun.exists():
            if ended.wait(0.05):
                return True
        return False

    def late(places: list[str]) -> None:
        stood.extend(places)
        over.touch()

    deadline = Deadline(3600.0, late, when_begun)
    tried(tmp_path, case.hook, written(tmp_path, case, body), deadline=deadline)
    name = case.head.partition("(")[0].split()[-1]
    assert any("mine.py:" in place and f" in {name}: " in place for place in stood), stood


@pytest.mark.parametrize(("hook", "head"), NOT_CALLED.items())
def test_one_that_is_given_what_only_a_run_has_is_not_called(
    hook: str, head: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"{head}:\n    raise KeyError('boom')\n")
    found = tried(tmp_path, hook, f"{tmp_path / 'mine.py'}:f")
    assert (found.error, len(found.lines)) == ("", 2)
    assert found.lines[0].endswith(", slime's")
    assert "it was not called, for it is given Megatron-core's model" in found.lines[1]
    assert "a run of one iteration tries it (--num-rollout 1" in found.lines[1]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_file_that_cannot_be_imported_is_told_with_its_line(hook: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(): ...\nraise KeyError('boom')\n")
    found = tried(tmp_path, hook, f"{tmp_path / 'mine.py'}:f")
    assert (found.exit_code, found.lines) == (2, [])
    assert f"KeyError: 'boom' ({tmp_path / 'mine.py'}:2)" in found.error


@pytest.mark.parametrize("hook", HOOKS)
def test_a_wrong_signature_is_told_with_the_line_to_write(hook: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f():\n    return 1\n")
    found = tried(tmp_path, hook, f"{tmp_path / 'mine.py'}:f")
    assert found.exit_code == 2
    assert found.lines == []
    kind = HOOKS[hook].its_kind()
    assert f"`def f()` ({tmp_path / 'mine.py'}:1), not {kind.must_be}; write" in found.error


def test_a_function_that_must_be_awaited_is_refused_when_it_is_not(tmp_path: Path) -> None:
    source = "def f(args, sample, sampling_params):\n    return sample\n"
    (tmp_path / "mine.py").write_text(source)
    found = tried(tmp_path, "custom-generate-function-path", f"{tmp_path / 'mine.py'}:f")
    assert "write `async def generate(args, sample, sampling_params):`" in found.error
