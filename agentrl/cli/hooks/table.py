"""The hooks that there are: one row each, from which `agentrl check-hook` and docs/hooks.md come.

A new hook is its `hook(...)` of `agentrl/user_code.py`, beside what calls it, and a row here: when
it is called, what it must return, and how it is tried (`worker` plays episodes, `source` asks for
tasks, `objective` and `learner` train on a small lease). Its signatures are those of its kind.
"""

import importlib
from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.user_code import Kind, Signature, load

__all__ = ["ELSEWHERE", "HOOKS", "Hook"]

_OF_ALGORITHM = "agentrl.cli.hooks.objective:trained"
#: Names of parameters that hold the answers of a group where a single one has no `s`.
_ONE = ("text", "sample", "prompt", "response")


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook. `kind`, `tries`: where its kind stands, or what makes it, and what tries it, as
    `module:name`, or `module:name/key` of what a mapping has there. `called`: when; `returns`: what
    it must return. `flag` takes its path, by default the flag of its name; `beside`: flags that go
    with it. `also`: what is taken beside functions. `sees_groups`: it is the hook of another row,
    which is given the answers of a group in place of one."""

    name: str
    kind: str
    called: str
    returns: str
    tries: str
    flag: str = ""
    beside: tuple[str, ...] = ()
    also: str = ""
    sees_groups: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The flags before its path."""
        return (*self.beside, self.flag or f"--{self.name}")

    @property
    def field(self) -> str:
        """The field of its flag."""
        return self.argv[-1].removeprefix("--").replace("-", "_")

    @property
    def is_of_algorithm(self) -> bool:
        """Whether an algorithm calls it."""
        return self.tries == _OF_ALGORITHM

    def check(self, config: RunConfig) -> None:
        """Load what the flag of a run names. Raises ConfigError."""
        given = getattr(config, self.field)
        for place in [given] if isinstance(given, str) else given or ():
            self.loaded(place)

    def its_kind(self) -> Kind[Any]:
        """What its flag takes."""
        found = _at(self.kind)
        kind: Kind[Any] = found if isinstance(found, Kind) else found()
        return kind

    def loaded(self, path: str) -> Any:
        """What `path` names, as a run loads it. Raises ConfigError."""
        return load(self.its_kind(), path)

    def tried_by(self) -> Any:
        """What tries it: a function of a `Trial` that gives lines and raises AgentRLError."""
        return _at(self.tries)

    def written(self, signature: Signature) -> str:
        """The head of a function with that signature: `def f(text, label, task)`."""
        return f"{self.its_kind().form} f{self.head(signature)}"

    def head(self, signature: Signature) -> str:
        """Its parameters: `(text, label, task)`."""
        head = str(signature)
        if self.sees_groups:
            for name in _ONE:
                head = head.replace(f"({name},", f"({name}s,").replace(f", {name})", f", {name}s)")
        return head


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    name, _, key = name.partition("/")
    found = getattr(importlib.import_module(module), name)
    return found[key] if key else found


HOOKS = {
    hook.name: hook
    for hook in (
        Hook(
            name="custom-rm-path",
            kind="agentrl.envs.named:rewards",
            called="for each answer, by the worker that played it",
            returns="a finite number, or a dict of which --reward-key names one",
            also="a class with compute_reward(prompts, responses), which returns a list",
            tries="agentrl.cli.hooks.worker:reward",
        ),
        Hook(
            name="group-rm",
            kind="agentrl.envs.named:rewards",
            flag="--custom-rm-path",
            beside=("--group-rm",),
            sees_groups=True,
            called="for each group, when all its episodes have ended; for each answer of an "
            "evaluation, alone in its list",
            returns="a list with a finite number, or such a dict, for each answer",
            also="a class with compute_reward(prompts, responses), which returns a list",
            tries="agentrl.cli.hooks.worker:group_reward",
        ),
        Hook(
            name="custom-generate-function-path",
            kind="agentrl.envs.generate:generate_kind",
            called="for each episode, which it plays",
            returns="the sample, or a list of samples: trained are tokens that were sampled",
            tries="agentrl.cli.hooks.worker:generate",
        ),
        Hook(
            name="rollout-function-path",
            kind="agentrl.envs.rollout_function:ROLLOUT_FUNCTIONS",
            called="one call after the other by the agent worker, for the groups that are due",
            returns="RolloutFnTrainOutput(samples, metrics) or a list of groups, each a list of "
            "samples: trained are tokens that were sampled",
            tries="agentrl.cli.hooks.worker:rollout",
        ),
        Hook(
            name="buffer-filter-path",
            kind="agentrl.envs.buffer_filter:BUFFER_FILTERS",
            called="for each get_samples of a rollout function, or of a data source with a buffer, "
            "when groups were given back",
            returns="at most num_samples of the groups of buffer: those that are played next",
            tries="agentrl.cli.hooks.source:chosen_groups",
        ),
        Hook(
            name="eval-function-path",
            kind="agentrl.envs.eval_function:EVAL_FUNCTIONS",
            called="once for each evaluation, by an agent worker, in a thread of its own",
            returns="RolloutFnEvalOutput(data, metrics) or data, {SET: {rewards, truncated, "
            "samples}}, of which the rewards are needed",
            tries="agentrl.cli.hooks.worker:evaluate",
        ),
        Hook(
            name="rollout-sample-hook-path",
            kind="agentrl.envs.sample_hooks:HOOKS",
            called="for each sample that a function of --custom-generate-function-path has played, "
            "before its reward, by the worker that played it",
            returns="the sample, or None for the one that it was given",
            tries="agentrl.cli.hooks.worker:generate",
        ),
        Hook(
            name="dynamic-sampling-filter-path",
            kind="agentrl.actors.group_scoring:FILTER",
            called="for each group, when it has its rewards",
            returns="a bool, (bool, reason), or slime's DynamicFilterOutput: whether it is kept",
            tries="agentrl.cli.hooks.worker:keep",
        ),
        Hook(
            name="data-source-path",
            kind="agentrl.envs.slime_source:SOURCES",
            called="get_samples(num_samples) for the next training tasks, --rollout-batch-size of "
            "them; save(number) and load(number) of a class that has both, for a run that goes on",
            returns="a list of groups, each a list of samples, the first of which makes the task; "
            "at the end an empty list",
            also="a class with get_samples(num_samples), which is made with args",
            tries="agentrl.cli.hooks.source:asked",
        ),
        Hook(
            name="custom-reward-post-process-path",
            kind="agentrl.algorithms.custom_rewards:REWARDS",
            called="once for each lease, before its trajectories are fetched",
            returns="ours: for each group a list with a finite number for each episode; slime's: "
            "(raw_rewards, rewards), a number for each sample",
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="custom-advantage-function-path",
            kind="agentrl.algorithms.custom_advantages:ADVANTAGES",
            called="once for each iteration, after the forward passes",
            returns="ours: for each row a finite number for each label; slime's: nothing, it sets "
            'rollout_data["advantages"], a tensor for each sample',
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="custom-loss-function-path",
            kind="agentrl.algorithms.custom:LOSSES",
            beside=("--loss-type", "custom_loss"),
            called="for each micro-batch",
            returns="ours: (loss, measures), a finite scalar with a gradient, and numbers by name; "
            "slime's: (loss, metrics), likewise",
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="custom-tis-function-path",
            kind="agentrl.algorithms.correction:CORRECTIONS",
            beside=("--use-tis",),
            called="for each micro-batch",
            returns="ours: a weight of 0 or more for each trained token; slime's: (pg_loss, "
            "loss_masks, metrics)",
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="custom-pg-loss-reducer-function-path",
            kind="agentrl.algorithms.reducer:REDUCERS",
            called="once for each iteration, about one trajectory at a time",
            returns="a function that makes one number of the losses: a weighted sum of them",
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="advantage-estimator",
            kind="agentrl.algorithms.load:ESTIMATORS",
            called="its methods for each lease, row and micro-batch",
            returns="what agentrl.algorithms.base.Algorithm says of each method",
            also="a subclass of agentrl.algorithms.base.Algorithm",
            tries=_OF_ALGORITHM,
        ),
        Hook(
            name="rollout-sample-filter-path",
            kind="agentrl.learner.hooks:KINDS/rollout_sample_filter_path",
            called="once for each iteration, before it is planned, by every rank of the learner",
            returns="nothing: it sets sample.remove_sample of episodes that are not trained",
            tries="agentrl.cli.hooks.learner:sample_filter",
        ),
        Hook(
            name="custom-convert-samples-to-train-data-path",
            kind="agentrl.learner.hooks:KINDS/custom_convert_samples_to_train_data_path",
            called="once for each iteration, before it is planned, by the first rank of the "
            "learner, with all its samples",
            returns='a dict with a list for each key: "rewards"; "loss_masks" and '
            '"sample_indices", if not all is trained; "tokens" and others as they were given',
            tries="agentrl.cli.hooks.learner:convert",
        ),
        Hook(
            name="rollout-data-postprocess-path",
            kind="agentrl.learner.hooks:KINDS/rollout_data_postprocess_path",
            called="once for each iteration, after the advantages, by every rank of the learner",
            returns='nothing: it changes rollout_data["advantages"], "returns" or "loss_masks"',
            tries="agentrl.cli.hooks.learner:data_postprocess",
        ),
        Hook(
            name="custom-update-weight-post-write-path",
            kind="agentrl.learner.hooks:KINDS/custom_update_weight_post_write_path",
            called="when the files of a push are written, before engines read them, by the rank "
            "that wrote them",
            returns="nothing: it makes the files visible where the engines are",
            tries="agentrl.cli.hooks.learner:after_write",
            beside=("--update-weight-transport", "disk", "--update-weight-disk-dir", "pushes"),
        ),
        Hook(
            name="custom-rollout-log-function-path",
            kind="agentrl.envs.slime_logs.functions:KINDS/custom_rollout_log_function_path",
            called="once for each iteration, while it is trained, in a process of its own",
            returns="whether trackers get what it logged in place of rollout/*",
            tries="agentrl.cli.hooks.logs:rollouts",
        ),
        Hook(
            name="custom-eval-rollout-log-function-path",
            kind="agentrl.envs.slime_logs.functions:KINDS/custom_eval_rollout_log_function_path",
            called="once for each evaluation, with all its sets, in a process of its own",
            returns="whether trackers get what it logged in place of eval/*",
            tries="agentrl.cli.hooks.logs:evaluation",
        ),
        Hook(
            name="rollout-all-samples-process-path",
            kind="agentrl.envs.slime_logs.functions:KINDS/rollout_all_samples_process_path",
            called="once for each lease, with all groups that were judged since the one before, "
            "those that a filter dropped too, in a process of its own",
            returns="nothing",
            tries="agentrl.cli.hooks.logs:all_samples",
        ),
        Hook(
            name="custom-megatron-init-path",
            kind="agentrl.learner.hooks:KINDS/custom_megatron_init_path",
            called="once by every rank of the learner, before its models are built",
            returns="nothing",
            tries="agentrl.cli.hooks.learner:init",
        ),
        Hook(
            name="custom-megatron-before-log-prob-hook-path",
            kind="agentrl.learner.hooks:KINDS/custom_megatron_before_log_prob_hook_path",
            called="before each forward pass for log-probabilities, by every rank of the learner",
            returns="nothing: it may change the model",
            tries="agentrl.cli.hooks.learner:before_log_prob",
        ),
        Hook(
            name="custom-megatron-before-train-step-hook-path",
            kind="agentrl.learner.hooks:KINDS/custom_megatron_before_train_step_hook_path",
            called="before the passes of each optimizer step, by every rank of the learner",
            returns="nothing: it may change the model, and the rate of the step",
            tries="agentrl.cli.hooks.learner:before_train_step",
        ),
    )
}

#: Code of the user's that is no single function: what tries it.
ELSEWHERE = {
    "env": "agentrl env check PATH",
    "tools": """agentrl env check tools --env-args '{"tools": ["PATH"]}' --prompt-data FILE""",
    "chat-format": "python train_async.py --chat-format PATH --dry-run",
    "model-family": "python train_async.py --model-family PATH --hf-checkpoint DIR --dry-run",
}
