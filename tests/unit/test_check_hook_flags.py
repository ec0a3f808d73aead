"""What `agentrl check-hook` tries a hook with: the row, the flags and the other hooks that the
command line names, and what it then shows."""

from pathlib import Path

from agentrl.cli.hooks.table import HOOKS
from tests.unit.hook_trials import tried


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
