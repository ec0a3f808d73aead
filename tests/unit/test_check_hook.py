"""`agentrl check-hook`: each hook is tried by the code of a run, and what is wrong is told."""

import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from agentrl.cli.hooks.apart import Tried, tried_here
from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.table import HOOKS
from agentrl.cli.main import main
from agentrl.user_code import Kind
from scripts.gen_hooks import PAGE, page

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
        "return float('nan')", "on the answer '4': env_error: EnvError: SingleTurnEnv",
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
        "return [1.0]", "f returned a list of 1; a list of 4 is wanted",
    ),
    Case(
        "group-rm", "async def f(args, samples, **kwargs)",
        "return [float(sample.index) for sample in samples]", "f(args, samples), slime's",
        "return [1.0] * 4", "f returned a list of 4; a list of 1 is wanted",
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
        "custom-reward-post-process-path", "def f(groups)",
        "return [[0.5] * len(group.rewards) for group in groups]", "at last it gave [[0.5,",
        "return [[1.0]]", "there are rewards for [1] episodes",
    ),
    Case(
        "custom-reward-post-process-path", "def f(args, samples)",
        "rewards = [sample.reward for sample in samples]\nreturn rewards, rewards", "slime's",
        "return [1.0]", "(raw_rewards, rewards) is wanted",
    ),
    Case(
        "custom-advantage-function-path", "def f(rows)",
        "return [row.credit.value * row.columns['mask'] for row in rows]", "ndarray[",
        "return []", "the advantages are no list of",
    ),
    Case(
        "custom-advantage-function-path", "def f(args, rollout_data)",
        "masks = rollout_data['loss_masks']\nrollout_data['advantages'] = [m * 1.0 for m in masks]",
        "at last it gave [Tensor[",
        "pass", 'rollout_data["advantages"] is no list of tensors',
    ),
    Case(
        "custom-loss-function-path", "def f(micro_batch, logprobs_T, entropy_T)",
        "loss = -(logprobs_T * micro_batch.columns['mask']).sum()\n"
        "return loss, {'loss': loss.detach()}",
        "at last it gave [",
        "return logprobs_T, {}", "a finite scalar is wanted",
    ),
    Case(
        "custom-tis-function-path", "def f(trained)",
        "return trained.mu_K.exp()", "at last it gave Tensor[",
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
        "return lambda losses: losses.sum() / 8", "at last it gave ",
        "return 3", "a function of the losses is wanted",
    ),
    Case(
        "advantage-estimator", "    def values(self, rewards)",
        "return [reward - 1.0 for reward in rewards]", "a subclass of agentrl.algorithms.base",
        "return [float('nan')] * len(rewards)", "are not all finite",
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


def tried(
    folder: Path, hook: str, path: str, *flags: str, deadline: Deadline | None = None
) -> Tried:
    rows = folder / "rows"
    rows.mkdir(exist_ok=True)
    return tried_here(HOOKS[hook], path, flags, rows, deadline or Deadline(3600.0, print))


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


def test_a_reward_model_is_a_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Model:\n    def compute_reward(self, prompts, responses):\n"
        "        return [float(len(each)) for each in responses]\n"
    )
    found = tried(tmp_path, "custom-rm-path", f"{tmp_path / 'mine.py'}:Model")
    assert found.error == ""
    assert found.lines[0] == f"Model: {HOOKS['custom-rm-path'].also}"
    assert "'4' is worth 1" in found.lines


def test_of_several_hooks_the_one_that_is_tried_is_shown(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def f(args, groups):\n    groups[0][0].remove_sample = True\n"
        "def g(args, rollout_id, rollout_data): ...\n"
    )
    flags = ("--rollout-data-postprocess-path", f"{tmp_path / 'mine.py'}:g")
    found = tried(tmp_path, "rollout-sample-filter-path", f"{tmp_path / 'mine.py'}:f", *flags)
    assert found.error == ""
    assert found.lines[1].endswith("and called 2 times")
    assert found.lines[2].startswith("at last it removed 1 of ")


def test_tokens_that_a_function_takes_out_are_counted(tmp_path: Path) -> None:
    counted = []
    for kept in ("m", "m * 0"):
        (tmp_path / f"m{len(kept)}.py").write_text(
            "def f(args, rollout_id, rollout_data):\n"
            f"    rollout_data['loss_masks'] = [{kept} for m in rollout_data['loss_masks']]\n"
        )
        path = f"{tmp_path / f'm{len(kept)}.py'}:f"
        found = tried(tmp_path, "rollout-data-postprocess-path", path)
        assert found.error == ""
        counted.append(int(found.lines[-1].split()[-4]))
    assert counted[0] > counted[1] == 0


def test_what_a_loss_makes_of_data_that_a_function_changed_is_told_with_its_flag(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "def f(args, rollout_id, rollout_data):\n"
        "    rollout_data['advantages'] = [a * 0 + 3e38 for a in rollout_data['advantages']]\n"
    )
    path = f"{tmp_path / 'mine.py'}:f"
    found = tried(tmp_path, "rollout-data-postprocess-path", path)
    assert found.error.startswith(f"--rollout-data-postprocess-path {path}: the loss is ")
    assert found.exit_code == 65


def test_a_data_source_may_end_after_one_task_that_a_run_takes(tmp_path: Path) -> None:
    head = (
        "from slime.utils.types import Sample\n"
        "class f:\n    def __init__(self, args): self.left = [[Sample(label='x', prompt=PROMPT)]]\n"
        "    def get_samples(self, num_samples):\n"
        "        groups, self.left = self.left, []\n        return groups\n"
    )
    path = tmp_path / "mine.py"
    path.write_text(head.replace("PROMPT", "'Why?', metadata={'tags': ('a', 'b')}"))
    found = tried(tmp_path, "data-source-path", f"{path}:f")
    assert found.error == ""
    _, row, note, end = found.lines
    assert row == 'sample:0: {"input":"Why?","label":"x","metadata":{"tags":["a","b"]}}'
    assert "is tuple ('a', 'b'), and arrives as list" in note
    assert end == "then it gave no more"
    (tmp_path / "other.py").write_text(head.replace("PROMPT", "7"))
    found = tried(tmp_path, "data-source-path", f"{tmp_path / 'other.py'}:f")
    assert "refuses the first task, sample:0" in found.error
    assert found.exit_code == 2


def test_the_row_and_the_flags_are_those_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"ask": "Capital of France?", "gold": "Paris"}\n')
    (tmp_path / "mine.py").write_text(
        "def f(args, sample):\n"
        "    assert (sample.prompt, args.eps_clip) == ('Capital of France?', 0.3)\n"
        "    return {'score': float(sample.label in sample.response), 'size': 5}\n"
    )
    rows = ("--prompt-data", str(tmp_path / "rows.jsonl"), "--input-key=ask", "--label-key", "gold")
    flags = (*rows, "--reward-key", "score", "--eps-clip", "0.3")
    found = tried(tmp_path, "custom-rm-path", f"{tmp_path / 'mine.py'}:f", *flags)
    assert found.error == ""
    assert "'Paris' is worth 1 {reward.score: 1, reward.size: 5}" in found.lines


def test_what_a_file_of_settings_says_is_given_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"input": "Capital of France?", "label": "Paris"}\n')
    (tmp_path / "run.toml").write_text(f'prompt_data = "{tmp_path / "rows.jsonl"}"\n')
    (tmp_path / "mine.py").write_text(
        "def f(args, sample):\n    assert sample.prompt == 'Capital of France?'\n    return 1.0\n"
    )
    file = ("--config", str(tmp_path / "run.toml"))
    assert tried(tmp_path, "custom-rm-path", f"{tmp_path / 'mine.py'}:f", *file).error == ""


def test_a_hook_is_tried_under_a_mixture(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(rewards, task):\n    return True\n")
    mix = '{"parts":[{"name":"a","env":"guess"}]}'
    path = f"{tmp_path / 'mine.py'}:f"
    assert tried(tmp_path, "dynamic-sampling-filter-path", path, "--env-mix", mix).error == ""


def test_a_flag_that_is_none_is_refused_as_a_run_refuses_it(tmp_path: Path) -> None:
    found = tried(tmp_path, "custom-rm-path", "mine.py:f", "--rewrd-key", "score")
    assert found.exit_code == 2
    assert "unknown flag --rewrd-key" in found.error


def test_what_a_reward_asks_may_be_away(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl.errors import InfrastructureError\n"
        "def f(text, label, task):\n    raise InfrastructureError('nobody is there')\n"
    )
    found = tried(tmp_path, "custom-rm-path", f"{tmp_path / 'mine.py'}:f")
    assert found.exit_code == 70
    assert "engine_error: InfrastructureError: nobody is there" in found.error


# ---- on the command line -------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hook_is_tried_in_a_process_of_its_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(
        "def f(rewards, task):\n    print('called')\n    return True\n"
        "def g(rewards, task):\n    import os\n    os._exit(0)\n"
    )
    assert main(["check-hook", "dynamic-sampling-filter-path", "mine.py:f"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "f (mine.py:1) has the signature f(rewards, task), ours"
    assert out.splitlines()[-1] == "ok: a run takes --dynamic-sampling-filter-path mine.py:f"
    assert "called\n" * 2 in err
    assert main(["check-hook", "dynamic-sampling-filter-path", "mine.py:g"]) == 65
    assert "--dynamic-sampling-filter-path mine.py:g ended the process" in capsys.readouterr().err


def test_what_a_function_of_the_learner_raises_is_told_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text("def f(args, groups):\n    raise KeyError('boom')\n")
    assert main(["check-hook", "rollout-sample-filter-path", "mine.py:f"]) == 65
    said = "--rollout-sample-filter-path mine.py:f: KeyError: 'boom' (mine.py:2)"
    assert capsys.readouterr().err.strip() == f"agentrl: {said}"


def test_a_hook_that_holds_the_interpreter_is_ended_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(
        "import re\ndef f(text, label, task):\n"
        "    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))\n"
    )
    assert main(["check-hook", "custom-rm-path", "mine.py:f", "--timeout", "3"]) == 65
    err = capsys.readouterr().err
    assert "--custom-rm-path mine.py:f did not come to an end within 3 s; it stands at\n" in err
    assert "    f (mine.py:3)\n" in err


def test_all_hooks_are_listed_and_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook"]) == 0
    listed = capsys.readouterr().out
    for hook in HOOKS.values():
        assert f"{hook.name}  ({' '.join(hook.argv)} PATH)" in listed
        for signature in hook.its_kind().accepts:
            assert f"f{hook.head(signature)}".split(",")[0] in listed
    assert main(["check-hook", "--custom-tis-function-path"[2:]]) == 0
    described = capsys.readouterr().out
    assert described in listed
    assert "ours     def f(trained)\n" in described


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("env", "env has a check of its own: agentrl env check mine.py"),
        ("custom-rm-pat", "there is no hook 'custom-rm-pat'; did you mean custom-rm-path?"),
        ("buffer-filter-path", "--buffer-filter-path is no hook here (refused): "),
        ("zzz", "there is no hook 'zzz'; there are custom-rm-path, group-rm, "),
    ],
)
def test_a_name_that_is_no_hook_is_told_what_to_do(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", name, "mine.py"]) == 2
    assert said in capsys.readouterr().err


def test_the_page_is_what_its_script_writes() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m scripts.gen_hooks"


def test_the_page_has_an_example_of_each_hook() -> None:
    shown = PAGE.read_text()
    assert [name for name in HOOKS if f"\nagentrl check-hook {name} " not in shown] == []


def test_each_hook_has_a_kind_and_something_that_tries_it() -> None:
    for hook in HOOKS.values():
        assert isinstance(hook.its_kind(), Kind)
        assert callable(hook.tried_by())
        assert hook.its_kind().accepts or hook.also
