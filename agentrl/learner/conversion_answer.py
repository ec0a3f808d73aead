"""What is read of the dict that `--custom-convert-samples-to-train-data-path` gives.

    rewards             what the episode of each sample earned; samples of one episode agree
    sample_indices      which sample an entry is of; without it, the places are those of the samples
    loss_masks          which tokens of the response are trained: none that was 0 before
    tokens, response_lengths, rollout_log_probs         as they were given, or not there
    rollout_mask_sums   the tokens to train of the whole episode, or not there: the learner counts
                        the denominators of a loss itself

All are lists with an entry for each sample that it returns. A sample that it leaves out is not
trained. Not read are `raw_reward`, `truncated` and `source_names`, which slime logs, `rollout_ids`,
by which it knows the samples of an episode, and keys of its own. Refused is anything else, with the
sample and the position.

Shape suffixes: L = tokens of one trajectory, R = tokens of its response.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.bounds import reward_defect
from agentrl.envs.slime_logs.samples import LoggedSample
from agentrl.learner.answers import Fault, narrowed, numbers
from agentrl.learner.rows import Trajectory
from agentrl.types import EpisodeId, PayloadRef

__all__ = ["Conversion", "Given", "conversion_of", "unpacked", "unread_keys"]

#: What is read.
_READ = (
    *("rewards", "sample_indices", "loss_masks", "rollout_mask_sums"),
    *("tokens", "response_lengths", "rollout_log_probs"),
)
#: What slime's own conversion returns beside it, and needs no word.
_PASSED_OVER = ("raw_reward", "truncated", "source_names", "rollout_ids")
#: What the learner makes of the answer after the forward passes.
_MADE_LATER = ("advantages", "returns")


class Conversion(msgspec.Struct, frozen=True):
    """What the function says of a lease, as it travels. `rewards`: of each episode that it speaks
    of; `left_out`: episodes that it was given and does not speak of; `masks`: of trajectories that
    it took tokens out of, how many tokens the response has, and their mask in bits (`unpacked`)."""

    rewards: list[tuple[EpisodeId, float]]
    left_out: list[EpisodeId]
    masks: list[tuple[PayloadRef, tuple[int, bytes]]]


def unpacked(num: int, bits: bytes) -> npt.NDArray[np.bool_]:
    """A mask of `num` tokens from its bits."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=num).astype(np.bool_)


@dataclass(frozen=True, slots=True)
class Given:
    """A sample, and what it was given with, whatever the function then writes to it."""

    sample: LoggedSample
    index: int
    trajectory: Trajectory
    masked_R: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, sample: LoggedSample, trajectory: Trajectory) -> "Given":
        """A sample of that trajectory, before anyone has written to it."""
        return cls(sample, sample.index or 0, trajectory, sample.masked())

    @property
    def episode(self) -> EpisodeId:
        """The episode that it is of."""
        return self.trajectory.row.episode

    @property
    def logprobs_R(self) -> npt.NDArray[np.float32]:
        """The engine's log-probabilities of its response."""
        return self.trajectory.logprobs_L[len(self.trajectory.logprobs_L) - len(self.masked_R) :]


def conversion_of(answer: Any, given: Sequence[Given], fault: Fault) -> Conversion:
    """What the `answer` of the function, who was given these samples, says of them. Raises what
    `fault` makes of the words for what it may not say."""
    if not isinstance(answer, Mapping):
        raise fault(
            f"it returned a {type(answer).__name__}; a dict is wanted, with a list for each key "
            'and "rewards" among them'
        )
    return _Reader(answer, given, fault).conversion()


def unread_keys(answer: Mapping[Any, Any]) -> list[str]:
    """Keys of the `answer` that nobody reads, and that slime's own conversion does not return."""
    return sorted(str(key) for key in answer if key not in (*_READ, *_PASSED_OVER))


class _Reader:
    def __init__(self, answer: Mapping[Any, Any], given: Sequence[Given], fault: Fault) -> None:
        self._given = given
        self._fault = fault
        for key in _MADE_LATER:
            if answer.get(key) is not None:
                raise fault(
                    f'it returned "{key}", which the learner makes after the forward passes: '
                    "change them in a function of --rollout-data-postprocess-path"
                )
        there = {key: answer[key] for key in _READ if answer.get(key) is not None}
        if "rewards" not in there:
            raise fault('its dict has no "rewards": a number for each sample is wanted')
        self._lists = {key: self._list(key, value) for key, value in there.items()}
        self._num = len(self._lists["rewards"])
        for key, found in self._lists.items():
            if len(found) != self._num:
                raise fault(
                    f'"{key}" has {len(found)} entries, and "rewards" {self._num}: one for each '
                    "sample is wanted"
                )
        #: The sample of each entry.
        self._samples = [given[place] for place in self._places()]

    def conversion(self) -> Conversion:
        """All of it. Raises for what it may not say."""
        self._require_same()
        rewards, masked = self._rewards(), [*self._masks()]
        self._require_sums(masked)
        masks = [
            (sample.trajectory.row.payload, (len(mask_R), np.packbits(mask_R).tobytes()))
            for sample, mask_R in masked
            if (mask_R != sample.masked_R).any()
        ]
        left_out = dict.fromkeys(
            each.episode for each in self._given if each.episode not in rewards
        )
        return Conversion([*rewards.items()], [*left_out], masks)

    # ---- which samples ----

    def _places(self) -> Sequence[int]:
        """The place, among the given samples, of that of each entry."""
        if "sample_indices" in self._lists:
            return self._places_by_index()
        if self._num != len(self._given):
            raise self._fault(
                f"it returned {self._num} of {len(self._given)} samples: say which by "
                '"sample_indices", the index of each'
            )
        return range(self._num)

    def _places_by_index(self) -> list[int]:
        left: dict[int, list[int]] = {}
        for place, sample in enumerate(self._given):
            left.setdefault(sample.index, []).append(place)
        found = []
        for entry, value in enumerate(self._lists["sample_indices"]):
            index = self._index(entry, value)
            if not left.get(index):
                known = "all samples of this index stand before it: return each once"
                what = known if index in left else "it was given no sample of this index"
                raise self._fault(f'"sample_indices"[{entry}] is {index}, and {what}')
            found.append(self._taken(entry, left[index]))
        for index in sorted({self._given[place].index for place in found}):
            if left[index] and "tokens" not in self._lists:
                raise self._fault(
                    f"it returned some of the samples of index {index}, which are the segments of "
                    f'episode {self._given[left[index][0]].episode}: return "tokens" too, which '
                    "tell them apart"
                )
        return found

    def _index(self, entry: int, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise self._fault(
                f'"sample_indices"[{entry}] is {value!r:.60}; the index of a sample is wanted'
            ) from None

    def _taken(self, entry: int, places: list[int]) -> int:
        """One of these `places`, which all have the index of an entry: where its tokens are."""
        found = 0
        if "tokens" in self._lists and len(places) > 1:
            tokens = self._lists["tokens"][entry]
            same = (i for i, place in enumerate(places) if _has(self._given[place], tokens))
            found = next(same, 0)
        return places.pop(found)

    # ---- what may not be changed ----

    def _require_same(self) -> None:
        """Raise for what is there and is not what it was given."""
        if "response_lengths" in self._lists:
            lengths = self._lists["response_lengths"]
            found_N = numbers(lengths, self._num, '"response_lengths"', self._fault, "sample")
            for entry, sample in enumerate(self._samples):
                if found_N[entry] != (num := len(sample.masked_R)):
                    name = self._name("response_lengths", entry, sample)
                    raise self._fault(
                        f"{name} is {found_N[entry]:g}; its response has {num} tokens"
                    )
        for entry, sample in enumerate(self._samples):
            self._require_equal("tokens", entry, sample.trajectory.tokens_L, "token")
            self._require_equal(
                "rollout_log_probs", entry, sample.logprobs_R, "token of the response"
            )

    def _require_equal(self, key: str, entry: int, before_N: npt.NDArray[Any], per: str) -> None:
        if key not in self._lists:
            return
        name = self._name(key, entry, self._samples[entry])
        found_N = numbers(self._lists[key][entry], len(before_N), name, self._fault, per)
        if (odd := (found_N != before_N).nonzero()[0]).size:
            place = int(odd[0])
            raise self._fault(
                f"{name} is {found_N[place]:.9g} at position {place}, where it was given "
                f"{before_N[place]:.9g}: what an engine sampled is trained, and nothing else; "
                "return it as it was given"
            )

    def _require_sums(self, masked: Sequence[tuple[Given, npt.NDArray[np.bool_]]]) -> None:
        """Raise for sums other than those of the masks that it returned, as slime makes them, or of
        those that it was given, which stay in the denominator."""
        if "rollout_mask_sums" not in self._lists:
            return
        returned, before = Counter[EpisodeId](), Counter[EpisodeId]()
        for sample, mask_R in masked:
            returned[sample.episode] += int(mask_R.sum())
            before[sample.episode] += int(sample.masked_R.sum())
        sums = self._lists["rollout_mask_sums"]
        found_N = numbers(sums, self._num, '"rollout_mask_sums"', self._fault, "sample")
        for entry, sample in enumerate(self._samples):
            num = returned[sample.episode]
            if found_N[entry] not in (num, before[sample.episode]):
                raise self._fault(
                    f"{self._name('rollout_mask_sums', entry, sample)} is {found_N[entry]:.9g}; "
                    f"all samples of its episode have {num} tokens to train: the learner counts "
                    "the denominators of a loss itself; return that number, or leave the key out"
                )

    # ---- what it may say ----

    def _rewards(self) -> dict[EpisodeId, float]:
        found: dict[EpisodeId, float] = {}
        for entry, sample in enumerate(self._samples):
            reward = self._reward(entry, sample)
            if (other := found.setdefault(sample.episode, reward)) != reward:
                raise self._fault(
                    f"the samples of episode {sample.episode} have the rewards {other:g} and "
                    f"{reward:g}: give all of an episode the same"
                )
        return found

    def _reward(self, entry: int, sample: Given) -> float:
        value, name = self._lists["rewards"][entry], self._name("rewards", entry, sample)
        try:
            reward = float(value)
        except (TypeError, ValueError):
            raise self._fault(f"{name} is {value!r:.60}; a number is wanted") from None
        if defect := reward_defect(reward):
            raise self._fault(f"{name} is {defect}")
        return reward

    def _masks(self) -> Iterator[tuple[Given, npt.NDArray[np.bool_]]]:
        """Of each given sample, which tokens of its response are trained: none of one that was left
        out."""
        told = {
            sample.trajectory.row.payload: self._mask(entry, sample)
            for entry, sample in enumerate(self._samples)
        }
        for sample in self._given:
            none_R = np.zeros_like(sample.masked_R)
            yield sample, told.get(sample.trajectory.row.payload, none_R)

    def _mask(self, entry: int, sample: Given) -> npt.NDArray[np.bool_]:
        if "loss_masks" not in self._lists:
            return sample.masked_R
        name = self._name("loss_masks", entry, sample)
        found_R = numbers(self._lists["loss_masks"][entry], len(sample.masked_R), name, self._fault)
        return narrowed(sample.masked_R, found_R, name, self._fault)

    def _list(self, key: str, value: Any) -> Sequence[Any]:
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, (list, tuple)):
            raise self._fault(f'"{key}" is a {type(value).__name__}; a list is wanted')
        return value

    def _name(self, key: str, entry: int, sample: Given) -> str:
        segment = sample.trajectory.row.meta.segment
        part = f", segment {segment}" if segment else ""
        return f'"{key}"[{entry}] (sample {sample.index}, episode {sample.episode}{part})'


def _has(given: Given, tokens: Any) -> bool:
    """Whether these are the tokens of that sample."""
    return list(tokens) == given.trajectory.tokens_L.tolist() if np.iterable(tokens) else False
