"""An engine's control plane, as typed calls that each have a deadline (`http_control`).

Engines take control calls directly: the router forwards none of them.
"""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from agentrl.errors import EngineError
from agentrl.serving.http_control import EngineRefusedError, HttpControl
from agentrl.types import EngineAddress

__all__ = [
    "OF_SCHEDULER",
    "EngineChecksum",
    "EngineControl",
    "EngineInfo",
    "HeldWeights",
]

#: Who loads a push, as SGLang calls them: the model that samples. A draft model of its own has
#: other weights, of other shapes; one that is layers of this model takes what is its own.
_TARGET, _AND_DRAFT = "target", "all"
#: What SGLang answers when all its schedulers have said how they are. Of `/model_info` and others
#: its HTTP server knows the answer by itself, also where a scheduler hangs.
OF_SCHEDULER = "/server_info"
#: Deadline of a look at an engine that nobody counts on.
_PROBE_TIMEOUT_S = 2.0


class EngineInfo(msgspec.Struct, frozen=True):
    """All that an engine says of itself, as SGLang names it: its settings, with its keys, and its
    model with the label of its weights."""

    server: dict[str, Any]
    model: dict[str, Any]

    def __repr__(self) -> str:
        return "EngineInfo(<hidden>)"

    @property
    def max_input_tokens(self) -> int:
        """Its limit in tokens."""
        return int(self.server["max_req_input_len"])


class EngineChecksum(msgspec.Struct, frozen=True):
    """Digest of an engine's weights: of all ranks together, and by SGLang's parameter names."""

    engine: str
    tensors: dict[str, str]


class HeldWeights(msgspec.Struct, frozen=True):
    """The weights of an engine: the label that it has for them, a digest of all of them (empty: not
    asked), and which process holds them (empty: the server does not say)."""

    label: str
    digest: str
    process: str = ""


class _Model(msgspec.Struct):
    weight_version: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Checksum(msgspec.Struct):
    per_engine_checksum: str


class _Process(msgspec.Struct):
    process: str


class EngineControl(HttpControl):
    """RL control plane of one SGLang engine; `timeout_s` is the deadline of each call, `key` what
    it wants to be shown."""

    _ready = "/ready"

    def __init__(
        self,
        engine: EngineAddress,
        *,
        timeout_s: float,
        key: str | None = None,
        pushes_draft: bool = False,
    ) -> None:
        super().__init__(engine.name, engine.url, timeout_s, key)
        self.engine = engine
        self._pushed = _AND_DRAFT if pushes_draft else _TARGET

    async def wait_alive(self, deadline_s: float) -> None:
        """Until the engine can be given weights. One that a sender left paused when it died can,
        though it takes no requests."""
        await self.wait_ready(deadline_s, path="/model_info")

    async def is_alive(self) -> bool:
        """Whether the engine can be given weights now; one that is slow to say so cannot."""
        try:
            await self._call("GET", OF_SCHEDULER, timeout_s=_PROBE_TIMEOUT_S)
        except EngineError:
            return False
        return True

    async def require_alive(self) -> None:
        """Raise EngineError unless the engine can be given weights now."""
        await self._call("GET", OF_SCHEDULER)

    async def pause(self, *, in_place: bool = False) -> None:
        """Hold all generation. Running requests go back into the queue and lose their cache; with
        `in_place` they stay where they are and keep it."""
        await self._post("/pause_generation", mode="in_place" if in_place else "retract")

    async def resume(self) -> None:
        """Continue after `pause`."""
        await self._post("/continue_generation", torch_empty_cache=False)

    async def release_memory(self, tags: Sequence[str]) -> None:
        """Give up the memory under these tags, of an engine that is paused and has it. Its content
        is lost."""
        await self._post("/release_memory_occupation", tags=list(tags))

    async def take_memory(self, tags: Sequence[str]) -> None:
        """Have the memory under these tags again, which were given up."""
        await self._post("/resume_memory_occupation", tags=list(tags))

    async def begin_update(self) -> None:
        """Open the weight-update session. One left open by a sender that died is taken over."""
        try:
            await self._post("/begin_weight_update", selector=self._pushed)
        except EngineRefusedError as error:
            if "already open" not in str(error):
                raise

    async def end_update(self) -> None:
        """Close the weight-update session."""
        await self._post("/end_weight_update")

    async def init_group(
        self,
        *,
        group: str,
        host: str,
        port: int,
        rank: int,
        world_size: int,
        backend: str,
        timeout_s: float,
    ) -> None:
        """Join the sender's collective as ranks `rank`, `rank` + 1, ... (one each TP rank)."""
        await self._post(
            "/init_weights_update_group",
            timeout_s,
            master_address=host,
            master_port=port,
            rank_offset=rank,
            world_size=world_size,
            group_name=group,
            backend=backend,
        )

    async def destroy_group(self, group: str) -> None:
        """Leave a collective; one the engine is not in counts as left."""
        try:
            await self._post("/destroy_weights_update_group", group_name=group)
        except EngineRefusedError as error:
            if "does not exist" not in str(error):
                raise

    async def receive_bucket(
        self,
        *,
        group: str,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        label: str | None,
        keeps_cache: bool = False,
    ) -> None:
        """Receive one flattened bucket from the collective and load it.

        `label` marks the last bucket: the engine then takes it as its version and drops the cache
        that the old weights filled. `keeps_cache` is for engines that were paused in place:
        requests that were put back would read the old cache as if it were new.
        """
        await self._post(
            "/update_weights_from_distributed",
            names=names,
            dtypes=dtypes,
            shapes=shapes,
            group_name=group,
            **self._loading(label, keeps_cache),
        )

    async def read_bucket(self, handle: bytes, *, label: str | None, keeps_cache: bool) -> None:
        """Load one flattened bucket from memory of its host, which `handle` names; the rest is as
        in `receive_bucket`."""
        text = b64encode(handle).decode()
        await self._post(
            "/update_weights_from_tensor",
            serialized_named_tensors=[text] * self.engine.num_ranks,
            **self._loading(label, keeps_cache),
        )

    def _loading(self, label: str | None, keeps_cache: bool) -> dict[str, Any]:
        return {
            "selector": self._pushed,
            "load_format": "flattened_bucket",
            "flush_cache": label is not None and not keeps_cache,
            "weight_version": label,
        }

    async def pull(self, folder: str, copy: str) -> None:
        """Bring the copy on its host up to the push in `folder`; requests go on."""
        await self._post("/pull_weights", folder=folder, copy=copy)

    async def load(self, folder: str, label: str) -> None:
        """Load the model in a folder and call it `label`, paused; the cache is dropped."""
        await self._post(
            "/update_weights_from_disk",
            model_path=folder,
            weight_version=label,
            load_format="auto",  # not that of its start, which may be none of files
            flush_cache=True,
        )

    async def label(self, version: str) -> None:
        """Call the weights that it holds `version`; requests go on."""
        await self._post("/update_weight_version", new_version=version, abort_all_requests=False)

    async def checksum(self) -> EngineChecksum:
        """Digest of the weights as they are in memory now."""
        answer = msgspec.json.decode(await self._post("/weights_checker", action="checksum"))
        tensors: dict[str, str] = {}
        for rank in answer["ranks"]:
            tensors |= rank["checksums"]
        return EngineChecksum(engine=answer["per_engine_checksum"], tensors=tensors)

    async def held(self, *, with_digest: bool = True) -> HeldWeights:
        """The weights as they are in memory now, in short. The server is asked all at once."""
        label, process, digest = await asyncio.gather(
            self.weight_version(), self.process(), self._digest(with_digest)
        )
        return HeldWeights(label, digest, process)

    async def _digest(self, is_wanted: bool) -> str:
        if not is_wanted:
            return ""
        found = await self._post("/weights_checker", action="checksum")
        return str(self._read(found, _Checksum).per_engine_checksum)

    async def process(self) -> str:
        """What tells its process from one that is started in its place; empty of a server that the
        run has not started, which does not say."""
        try:
            return str((await self._get("/process", _Process)).process)
        except EngineRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return ""

    async def weight_version(self) -> str:
        """The label of its weights."""
        return str((await self._get("/model_info", _Model)).weight_version)

    async def takes_turns(self) -> bool:
        """Whether it is neither paused nor about to start or end."""
        try:
            await self._call("GET", "/ready")
        except EngineRefusedError:
            return False
        return True

    async def abort(self, request: str) -> None:
        """Stop one request (its id, or a prefix of it); an unknown one is no error."""
        await self._post("/abort_request", rid=request)

    async def info(self) -> EngineInfo:
        """Its settings and its model."""
        return EngineInfo(await self._get("/server_info"), await self._get("/model_info"))

    async def tokens_of(self, text: str) -> list[int]:
        """The tokens of a text, with its control tokens read as such. EngineRefusedError by an
        engine without a tokenizer."""
        answer = await self._post("/tokenize", prompt=text, add_special_tokens=False)
        return list(self._read(answer, _Tokens).tokens)
