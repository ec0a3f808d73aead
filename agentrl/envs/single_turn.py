"""`single-turn`: one prompt, one answer, compared with a label. For rows without tools."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.config.args import Args
from agentrl.config.settings_file import without_nulls
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.grading.boxed import boxed
from agentrl.envs.grading.judging import spec_of
from agentrl.envs.grading.labels import label_text
from agentrl.envs.messages import AssistantTurn, Message, Step, ToolCall
from agentrl.envs.registry import register
from agentrl.envs.reward_input import RewardInput
from agentrl.envs.reward_keys import about_key, chosen, parts, require_keys
from agentrl.envs.reward_service import SERVICE, service_of
from agentrl.envs.reward_types import RewardType, scorers, type_of_row
from agentrl.envs.row_tools import name_of, tools_of
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.slime_rewards import OfModel, OfSample, listed
from agentrl.errors import AgentRLError, ConfigError, EnvError
from agentrl.types import EpisodeSummary, StopReason

__all__ = ["SingleTurnEnv"]

_NO_LABEL = ", or score answers without labels by a function of yours (--custom-rm-path)"


@register("single-turn")
class SingleTurnEnv(Env):
    """One prompt, one answer, and what it is worth: 1 when the text is the label, else 0, unless a
    reward is named.

    `input_key` names the prompt in a row: a string, or a list of messages with `role` and
    `content`. `label_key` names the label (by default `label`); numbers are compared as JSON writes
    them. Either may lead into a value: `reward_model.ground_truth`. `rm_type` names a reward that
    ships (`reward_types.py`), and a row's metadata may name another one; `reward` names one of the
    user's (`scorers`), before both. It may do without labels, and is then given an empty one
    where a row has none, unless `label_key` says that each has one: a row that asks for such a
    reward itself needs none even then. A reward may be a dict:
    `reward_key` names what is trained of it, `eval_reward_key` what is the score of an evaluation;
    its numbers are counted as metrics `reward.KEY`; `group_rm` has the user's function see the
    answers of a group together. `judge` and `reward_service` are for rewards that ask a model:
    `JudgeSpec`, and `RewardService`, which the run starts. `rm_url` is where one listens that the
    run does not start.

    The prompt shows the `tools` of a row. Nothing runs them: the first turn ends the episode, and a
    reward of the user's reads its calls behind the text, a line of JSON for each.
    """

    reward_reads_text_only: bool | None = True

    def __init__(
        self,
        *,
        input_key: str = "input",
        label_key: str | None = None,
        reward: str | None = None,
        rm_type: str | None = None,
        rm_url: str | None = None,
        reward_key: str | None = None,
        eval_reward_key: str | None = None,
        group_rm: bool = False,
        judge: Mapping[str, Any] | None = None,
        reward_service: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._reward_key = reward_key
        self._eval_reward_key = eval_reward_key or reward_key
        self._parts: dict[str, float] = {}
        self._input_key = input_key
        self._label_key = label_key or "label"
        self._each_has_a_label = label_key is not None
        self._url = rm_url
        self._judge = spec_of(judge)
        self._service = None if reward_service is None else service_of(reward_service)
        self._task: dict[str, Any] = {}
        self._turn: AssistantTurn | None = None
        self._own, self._usual = scorers(reward, rm_type)
        self._is_by_row = reward is None
        self._kind = self._usual
        # one that ships scores each answer by itself, and is spared the second look
        if type(self).score_group is SingleTurnEnv.score_group:
            self.scores_groups = group_rm and self._ranks()
        self.groups_show_reasoning = isinstance(self._own, (OfSample, OfModel))
        if self._own is None and (reward or rm_type):
            self._require_url(self._usual, ConfigError)
            if not self._usual.facts.wants:  # what a model answers is not known before it is asked
                require_keys(self._usual.name, self._usual.facts.keys, reward_key, eval_reward_key)
        if reward or rm_type:
            # Nobody has said that it gives the same text the same: a judge may not.
            self.reward_reads_text_only = None

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        told = args.get("reward_service")
        if told is None:
            return {}
        asked = service_of(told)
        own = asked.gpus, asked.cpus, asked.per
        return {SERVICE: ServiceSpec(SERVICE, asked.argv, asked.ready_path, *own)}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
        return self.take(task)

    def take(self, task: dict[str, Any]) -> list[Message]:
        """Take a row up, and return its prompt. Raises EnvError for a row that cannot be played."""
        self._task = task
        self._kind = self._kind_of(task)
        if self._kind is not self._usual:
            self.reward_reads_text_only = None
        self._require_url(self._kind, EnvError)
        self._require_key()
        self._label = self._label_of(task)
        if self._own is None and self._kind.facts.check_row is not None:
            self._kind.facts.check_row(self._label, task)
        self.schemas = [tool for tool in tools_of(task) if name_of(tool) not in self.tools]
        return self._messages(_value(task, self._input_key, self._flag("input-key")))

    def _messages(self, prompt: Any) -> list[Message]:
        if isinstance(prompt, str):
            return [Message.user(prompt)]
        if prompt is None:  # so a column of Parquet says that it has none
            raise EnvError(_null(self._input_key))
        try:
            return msgspec.convert(without_nulls(prompt), list[Message])
        except msgspec.ValidationError as error:
            raise EnvError(f"{self._input_key!r} is no list of messages: {error}") from error

    async def step(self, turn: AssistantTurn) -> Step:
        self._turn = turn
        shown = {name_of(tool) for tool in self.schemas}
        # An Env without tools of its own has nothing to answer, whatever was called or misspelt.
        if self.tools and not any(call.name in shown for call in turn.tool_calls):
            step = await super().step(turn)
            return self._counted(step) if step.terminated else step
        said = [turn.text] if turn.text else []
        if not self.reward_reads_text_only:
            said += [_written(call) for call in turn.tool_calls]
        return self._counted(await self._scored("\n".join(said)))

    async def score(self, text: str) -> float:
        if self.scores_groups and self._ranks() and not self.is_evaluation:
            return 0.0  # `score_group` gives it
        found: Any = await self._worth(text)
        self._parts = parts(found)
        if self.is_evaluation:
            self.vote = await self._vote_for(text, found)
        key = self._eval_reward_key if self.is_evaluation else self._reward_key
        reward: float = chosen(found, key)
        return reward

    async def _vote_for(self, text: str, found: Any) -> str:
        """What the answer says, where `found` is what it is worth."""
        if isinstance(found, Mapping) and found.get("pred"):
            return str(found["pred"])
        answer = self._answer(text)
        return await self._kind.vote(answer) if self._own is None else boxed(answer.response) or ""

    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> Sequence[float]:
        self._task = task
        self._kind = self._kind_of(task)
        if not self._ranks():  # the row asks for a reward that scores each by itself
            return [episode.reward for episode in episodes]
        self._label = self._label_of(task)
        answers = [
            msgspec.structs.replace(
                self._answer(
                    episode.answer, is_cut=episode.stop_reason is not StopReason.TERMINATED
                ),
                sampled=episode.sampled,
            )
            for episode in episodes
        ]
        if self._own is None:
            return await self._kind.ranks(answers, self._known())
        found = await self._worths(answers, is_group=True)
        return [chosen(worth, self._reward_key) for worth in found]

    async def _worth(self, text: str) -> Any:
        if self._own is None:
            return await self._kind.worth(self._answer(text), self._known())
        return (await self._worths([self._answer(text)], is_group=self.scores_groups))[0]

    async def _worths(self, answers: list[RewardInput], *, is_group: bool = False) -> list[Any]:
        """Of answers to one task, by the user's function: each by itself, or together."""
        own: Any = self._own
        if isinstance(own, (OfSample, OfModel)):
            args = Args(self.run_flags)
            if is_group:
                return await own.worth_of_group(args, answers)
            return [await own.worth(args, answer) for answer in answers]
        texts: Any = [answer.text for answer in answers]
        found = own(texts if is_group else texts[0], label_text(self._label), self._task)
        found = await found if inspect.isawaitable(found) else found
        name = getattr(own, "__name__", "the reward")
        return listed(found, len(answers), name) if is_group else [found]

    def _answer(self, text: str, *, is_cut: bool = False) -> RewardInput:
        turn = self._turn
        return RewardInput(
            text=text,
            response=text if turn is None or not turn.reasoning else turn.response,
            label=self._label,
            prompt=find(self._task, self._input_key),
            task=self._task,
            is_cut=is_cut or (turn is not None and turn.finish_reason == "length"),
            prompt_ids=turn.prompt_ids if turn is not None else (),
            output_ids=(turn.output_ids or None) if turn is not None else None,
        )

    @property
    def _scored_by(self) -> str:
        own: Any = self._own
        return super()._scored_by if own is None else getattr(own, "__name__", "the reward")

    @property
    def asks_server(self) -> bool:
        return self._own is None and "url" in self._kind.facts.wants

    def _ranks(self) -> bool:
        return self._own is not None or self._kind.facts.ranks is not None

    def _known(self) -> dict[str, Any]:
        """What a reward that asks a model is told. Its own service comes before --rm-url."""
        url = self._url
        if self._service is not None:
            url = f"{self.services[SERVICE].rstrip('/')}{self._service.path}"
        return {"url": url, "spec": self._judge}

    def _require_url(self, kind: RewardType, error: type[AgentRLError]) -> None:
        has_one = self._url is not None or self._service is not None
        if self._own is None and "url" in kind.facts.wants and not has_one:
            raise error(f"the reward {kind.name} asks a model over HTTP: say where with --rm-url")

    def _require_key(self) -> None:
        """Raise EnvError where the reward of the row does not give what the flags name of it."""
        kind, own = self._kind, self._eval_reward_key if self.is_evaluation else self._reward_key
        if self._own is not None or kind.facts.wants:
            return
        if own is not None:
            flag = "--reward-key" if own == self._reward_key else "--eval-reward-key"
            if wrong := about_key(kind.name, kind.facts.keys, own):
                raise EnvError(f"{flag} {wrong}")
        elif kind.facts.keys:
            name, key = kind.name, kind.facts.keys[0]
            of_set = f"`rm_type: {name}` and `reward_key: {key}` of a set of --eval-config, or "
            raise EnvError(
                f"the reward {name} is a dict of {list(kind.facts.keys)}: name one with "
                f"{of_set if self.is_evaluation else ''}--rm-type {name} --reward-key {key}"
            )

    def _counted(self, step: Step) -> Step:
        return msgspec.structs.replace(step, metrics=step.metrics | self._parts)

    def _kind_of(self, task: dict[str, Any]) -> RewardType:
        return (type_of_row(task) if self._is_by_row else None) or self._usual

    def _label_of(self, task: dict[str, Any]) -> Any:
        is_usual = self._own is not None or self._kind is self._usual
        needs = self._compares() or (self._each_has_a_label and is_usual)
        is_there = holds(task, self._label_key) and find(task, self._label_key) is not None
        if not needs and not is_there:
            return None
        label = _value(task, self._label_key, self._flag("label-key"), _NO_LABEL)
        if label is None:
            raise EnvError(_null(self._label_key))
        self._require_plain(label)
        return label

    def _compares(self) -> bool:
        """Whether the reward is one that ships, and compares with a label."""
        return self._own is None and self._kind.facts.needs_label

    def _require_plain(self, label: Any) -> None:
        if not self._compares():
            return
        if isinstance(label, dict):
            raise EnvError(_nested(self._label_key, label, self._flag("label-key")))
        if isinstance(label, list) and (wrong := _wrong_list(label)):
            raise EnvError(f"the label {self._label_key!r} {wrong}")

    def _flag(self, key: str) -> str:
        """The flag that says where rows of this kind of episode have something."""
        return f"--eval-{key}" if self.is_evaluation else f"--{key}"


def _null(key: str) -> str:
    return f"the task has no {key!r}: it is null"


def _nested(key: str, label: dict[str, Any], flag: str) -> str:
    inner = f"; name a value within it, as in {flag} {key}.{min(label)}" if label else ""
    return (
        f"the label {key!r} has the keys {sorted(label)}, and no text of a model equals that{inner}"
    )


def _wrong_list(labels: list[Any]) -> str | None:
    """Why no text of a model is one of these, where that is so."""
    if not labels:
        return "is an empty list: nothing is right"
    for each in labels:
        if not isinstance(each, str | int | float):
            return f"lists {each!r:.80}; list texts or numbers, of which any is right"
    return None


def _written(call: ToolCall) -> str:
    name = msgspec.json.encode(call.name).decode()
    return f'{{"name": {name}, "arguments": {call.arguments.decode()}}}'


def _value(task: dict[str, Any], key: str, flag: str, otherwise: str = "") -> Any:
    try:
        return find(task, key)
    except KeyError:
        raise EnvError(
            f"the task has no {key!r}; its keys are {sorted(task)}; name one with {flag}{otherwise}"
        ) from None
