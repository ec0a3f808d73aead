"""`Prompts`: what an agent sends that writes its prompts itself, and which call it continues.

Ids stand as they are. A text that begins with one that was answered, and with the answer to it,
keeps the ids of both: encoded anew, an answer may become other tokens than were sampled, and the
engine would go on after what no policy said. Of an answer that the agent has cut, the tokens are
kept whose text is still there. What follows is encoded, control tokens that it spells too.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from agentrl.actors.endpoint.calls import Call, CallTree
from agentrl.errors import ChatError
from agentrl.tokens.vocab import Vocab

__all__ = ["KeptPrompt", "Prompts"]

#: Tokens that may be needed to complete one character.
_MAX_OF_ONE = 8


class KeptPrompt(msgspec.Struct, frozen=True):
    """The ids of a text's beginning, and the text that is still to be encoded."""

    ids: list[int]
    rest: str


class _Said(msgspec.Struct, frozen=True):
    call: Call
    asked: str
    answer: str
    skip_special: bool


class Prompts:
    """Of one episode, whose answered calls are `tree`."""

    def __init__(self, tree: CallTree, vocab: Vocab) -> None:
        self._tree = tree
        self._vocab = vocab
        self._said: list[_Said] = []
        self._known: dict[bytes, list[Call]] = {}
        self._lengths: set[int] = set()

    def kept(self, text: str) -> KeptPrompt:
        """What of `text` was read or said before."""
        best = KeptPrompt([], text)
        for said in self._said:
            if text.startswith(said.asked):
                found = self._after(said, text)
                best = max(best, found, key=lambda each: len(each.ids))
        return best

    def require_known(self, ids: Sequence[int]) -> None:
        """Raise ChatError for an id that the tokenizer does not have."""
        size = self._vocab.size
        for at, id_ in enumerate(ids):
            if not 0 <= id_ < size:
                words = f"input_ids[{at}] is {id_}; the tokenizer has ids below {size}"
                raise ChatError(words, param="input_ids")

    def parent(self, ids: Sequence[int]) -> tuple[Call | None, list[int]]:
        """The call whose prompt and answer `ids` begin with, the longest, and the ids after it. Of
        several, one that nothing continues yet."""
        raw, seen, digest = memoryview(array("i", ids)).cast("B"), 0, blake2b(digest_size=16)
        found: tuple[Call | None, list[int]] = None, list(ids)
        for length in sorted(self._lengths):
            if length > len(ids):
                break
            digest.update(raw[4 * seen : 4 * length])
            seen = length
            if known := self._known.get(digest.digest()):
                free = [call for call in known if not self._tree.is_continued(call)]
                found = (free or known)[-1], list(ids[length:])
        return found

    def remember(
        self,
        call: Call,
        prompt: Sequence[int],
        asked: str | None,
        answer: str,
        *,
        skip_special: bool,
    ) -> None:
        """`call` was answered. `asked`: its prompt, if that came as text."""
        whole = array("i", [*prompt, *call.generation.output_ids])
        digest = blake2b(memoryview(whole).cast("B"), digest_size=16).digest()
        self._known.setdefault(digest, []).append(call)
        self._lengths.add(len(whole))
        if asked is not None:
            self._said.append(_Said(call, asked, answer, skip_special))

    def _after(self, said: _Said, text: str) -> KeptPrompt:
        rest = text[len(said.asked) :]
        call = said.call
        ids = self._tree.prompt(call.parent, call.opened)
        output = call.generation.output_ids
        if rest.startswith(said.answer):
            return KeptPrompt([*ids, *output], rest[len(said.answer) :])
        num, same = self._num_said(said, rest)
        return KeptPrompt([*ids, *output[:num]], rest[same:])

    def _num_said(self, said: _Said, rest: str) -> tuple[int, int]:
        """How many tokens of an answer spell the beginning of `rest`, and their characters."""
        output = said.call.generation.output_ids
        same = _num_same(said.answer, rest)
        low, high = 0, len(output)
        while low < high:  # the longest beginning that is no longer than what is the same
            middle = (low + high + 1) // 2
            text = self._vocab.decode(output[:middle], skip_special=said.skip_special)
            low, high = (middle, high) if len(text) <= same else (low, middle - 1)
        for num in range(low, max(low - _MAX_OF_ONE, 0), -1):
            text = self._vocab.decode(output[:num], skip_special=said.skip_special)
            if rest.startswith(text):
                return num, len(text)
        return 0, 0


def _num_same(one: str, other: str) -> int:
    """How many first characters are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
