"""`Sample`: an episode as a function of slime's users reads and writes it.

Its response is the last `response_length` of its `tokens`; `loss_mask` is 1 where a token of the
response is to be trained. A field that nothing here fills is None, as where slime does not fill it.
Whatever else a function writes to it is its own.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

__all__ = ["Sample"]


class _Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


#: What a finish reason of an engine makes of a sample.
_ENDED = {
    "stop": _Status.COMPLETED,
    "length": _Status.TRUNCATED,
    "abort": _Status.ABORTED,
}


class _Counts:
    """Sums over the answers of a sample; `_told`: what an answer calls each that has another name
    there."""

    _told: ClassVar[Mapping[str, str]] = {}

    def add(self, meta_info: Mapping[str, Any]) -> None:
        """Count what an answer says."""
        for name in self.to_dict():
            more = meta_info.get(self._told.get(name, name), 0)
            setattr(self, name, getattr(self, name) + more)

    def to_dict(self) -> dict[str, int]:
        """The sums by name."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, int]) -> Self:
        """Those of which `to_dict` gave this."""
        return cls(**data)


@dataclass
class _SpecInfo(_Counts):
    """Of speculative decoding, where engines do that."""

    _told: ClassVar[Mapping[str, str]] = {"completion_token_num": "completion_tokens"}

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self) -> float:
        """Drafted tokens that were accepted, as a share."""
        return self.spec_accept_token_num / (self.spec_draft_token_num or 1)

    @property
    def spec_accept_length(self) -> float:
        """Tokens of one verification."""
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct else 0.0


@dataclass
class _PrefixCacheInfo(_Counts):
    """Tokens of prompts, and those that an engine had in its cache."""

    _told: ClassVar[Mapping[str, str]] = {"total_prompt_tokens": "prompt_tokens"}

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Their share."""
        return self.cached_tokens / (self.total_prompt_tokens or 1)


def places(mint: int, index: int, size: int) -> tuple[int, int]:
    """`group_index` and `index` of a sample: groups of `size` are counted through the run from 0,
    where the run counts them from 1."""
    return mint - 1, (mint - 1) * size + index


@dataclass
class Sample:
    """One episode, or one part of it."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: Any = None
    status: _Status = _Status.PENDING
    metadata: Any = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: _SpecInfo = field(default_factory=_SpecInfo)
    prefix_cache_info: _PrefixCacheInfo = field(default_factory=_PrefixCacheInfo)

    Status = _Status
    SpecInfo = _SpecInfo
    PrefixCacheInfo = _PrefixCacheInfo

    def to_dict(self) -> dict[str, Any]:
        """All that it has, what a function has written to it too."""
        names = dict.fromkeys([*(each.name for each in fields(Sample)), *vars(self)])
        found = {name: getattr(self, name) for name in names if not name.startswith("_")}
        infos = {name: found[name].to_dict() for name in _INFOS}
        return {**found, "status": self.status.value, **infos}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Sample":
        """The sample of which `to_dict` gave this."""
        infos = {name: kind.from_dict(data.get(name, {})) for name, kind in _INFOS.items()}
        values = {**data, "status": _Status(data["status"]), **infos}
        known = {each.name for each in fields(Sample)}
        sample = Sample(**{name: value for name, value in values.items() if name in known})
        for name in values.keys() - known:
            setattr(sample, name, values[name])
        return sample

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Iterable[int] | None = None,
        log_probs: Iterable[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append to the response what the model has sampled (`trainable`, with its log_probs), or
        what somebody else has written. `meta_info` is that of an answer: its finish reason becomes
        the status. Raises ValueError where the numbers of tokens and log_probs differ."""
        del args
        new = [int(token) for token in tokens or ()]
        known = None if log_probs is None else [float(each) for each in log_probs]
        if known is not None and len(known) != len(new):
            raise ValueError(f"{len(known)} log_probs for {len(new)} tokens")
        if new and trainable and known is None:
            raise ValueError(f"{len(new)} tokens are trainable and have no log_probs")
        if new and not trainable and known is not None:
            raise ValueError(f"{len(new)} tokens are not trainable and have log_probs")
        self.response += text or ""
        before = self.response_length
        if self.loss_mask is None:
            self.loss_mask = [1] * before
        if self.rollout_log_probs is None:
            self.rollout_log_probs = [0.0] * before
        self.tokens = [*self.tokens, *new]
        self.response_length += len(new)
        self.loss_mask += [int(trainable)] * len(new)
        self.rollout_log_probs += [0.0] * len(new) if known is None else known
        if len(self.loss_mask) != self.response_length:
            raise ValueError(
                f"loss_mask has {len(self.loss_mask)} entries for a response of "
                f"{self.response_length} tokens"
            )
        if meta_info is not None and update_terminal_info:
            self._end(meta_info)

    def _end(self, meta_info: dict[str, Any]) -> None:
        self.prefix_cache_info.add(meta_info)
        if "spec_verify_ct" in meta_info:
            self.spec_info.add(meta_info)
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        if "finish_reason" in meta_info:
            self.status = _ENDED.get(meta_info["finish_reason"]["type"], self.status)

    def get_reward_value(self, args: Any) -> Any:
        """The reward that is trained."""
        key = getattr(args, "reward_key", None)
        return self.reward[key] if key else self.reward

    @property
    def effective_response_length(self) -> int:
        """Tokens that are trained."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)


_INFOS: Mapping[str, type[_Counts]] = {
    "spec_info": _SpecInfo,
    "prefix_cache_info": _PrefixCacheInfo,
}
