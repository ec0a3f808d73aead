"""Control planes of an engine and of the router, as typed calls that each have a deadline.

Engines take control calls directly: the router forwards none of them. Every failure is an
EngineError that names the engine and the endpoint; `EngineRefusedError` is the kind where the
engine is alive and said no.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from agentrl.clock import MonotonicClock
from agentrl.errors import EngineError
from agentrl.serving.key import authorization
from agentrl.serving.watched import HOST_LOST_S, watched_socket
from agentrl.types import EngineAddress
from agentrl.visible import shown_url

__all__ = [
    "EngineChecksum",
    "EngineControl",
    "EngineInfo",
    "EngineRefusedError",
    "HeldWeights",
    "RouterControl",
]

#: Between two looks at a process that has not opened its port yet; nothing signals that event.
_START_INTERVAL_S = 0.2


#: Who loads a push, as SGLang calls them: the model that samples. A draft model of its own has
#: other weights, of other shapes; one that is layers of this model takes what is its own.
_TARGET, _AND_DRAFT = "target", "all"
#: Deadline of a look at an engine that nobody counts on.
_PROBE_TIMEOUT_S = 2.0


class EngineRefusedError(EngineError):
    """The engine answered and refused: it is alive, its HTTP status is `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


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
    """The weights of an engine: the label that it has for them, and a digest of all of them."""

    label: str
    digest: str


class _Model(msgspec.Struct):
    weight_version: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Checksum(msgspec.Struct):
    per_engine_checksum: str


class _HttpControl:
    """One server's JSON endpoints. `async with` opens and closes the HTTP session. `_ready` answers
    2xx once it takes requests."""

    _ready: str

    def __init__(self, name: str, url: str, timeout_s: float, key: str | None) -> None:
        self.name = name
        self._key = key
        self.url = url.rstrip("/")
        self.shown = shown_url(self.url)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # Deadlines are ours, one for each call. Every call connects anew: an idle connection that
        # the server closes just now must not pass for a lost engine.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, socket_factory=watched_socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=HOST_LOST_S),
            headers=authorization(self._key),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._session.close()

    async def _call(
        self, method: str, path: str, body: object = None, timeout_s: float | None = None
    ) -> bytes:
        """Body of the answer. Raises EngineError; EngineRefusedError for any status but 2xx."""
        where = f"{self.name} {self.shown}: {method} {path}"
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            with anyio.fail_after(deadline_s):
                async with self._session.request(method, self.url + path, json=body) as answer:
                    content = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            if type(error) is TimeoutError:
                raise EngineError(f"{where} missed its deadline of {deadline_s:g} s") from error
            said = repr(error).replace(self.url, self.shown)
            raise EngineError(f"{where} failed: {said}") from error
        if not answer.ok:
            text = content[:500].decode(errors="replace")
            raise EngineRefusedError(f"{where} answered {answer.status}: {text}", answer.status)
        return content

    async def _post(self, path: str, timeout_s: float | None = None, **body: object) -> bytes:
        return await self._call("POST", path, body, timeout_s)

    async def _get(self, path: str, kind: Any = Any) -> Any:
        return self._read(await self._call("GET", path), kind)

    def _read(self, content: bytes, kind: Any) -> Any:
        """An answer as `kind`. Raises EngineError where it is none."""
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"{self.name} {self.shown} does not say what it was asked for: {error}"
            ) from error

    async def wait_ready(
        self,
        deadline_s: float,
        alive: Callable[[], bool] = lambda: True,
        path: str | None = None,
    ) -> None:
        """Until it takes requests (or else `path` answers 2xx). `alive` tells whether its process
        still runs. EngineError when that ends or the deadline passes."""
        path, clock = path or self._ready, MonotonicClock()
        end = clock.now() + deadline_s
        while True:
            try:
                await self._call("GET", path, timeout_s=min(self._timeout_s, deadline_s))
            except EngineError as error:
                if not alive():
                    raise EngineError(f"{self.name} ended before it was ready") from error
                if clock.now() >= end:
                    raise EngineError(
                        f"{self.name} {self.shown} was not ready within {deadline_s:g} s: {error}"
                    ) from error
            else:
                return
            await anyio.sleep(_START_INTERVAL_S)


class EngineControl(_HttpControl):
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
            await self._call("GET", "/model_info", timeout_s=_PROBE_TIMEOUT_S)
        except EngineError:
            return False
        return True

    async def require_alive(self) -> None:
        """Raise EngineError unless the engine can be given weights now."""
        await self._call("GET", "/model_info")

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
            selector=self._pushed,
            load_format="flattened_bucket",
            flush_cache=label is not None and not keeps_cache,
            weight_version=label,
        )

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

    async def held(self) -> HeldWeights:
        """The weights as they are in memory now, in short."""
        label = await self.weight_version()
        digest = await self._post("/weights_checker", action="checksum")
        return HeldWeights(label, self._read(digest, _Checksum).per_engine_checksum)

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


class RouterControl(_HttpControl):
    """The router's own control plane: which engines it sends requests to. `key`: what it and they
    want to be shown. It is ready when it answers; it may have no workers yet."""

    _ready = "/liveness"

    def __init__(self, url: str, *, timeout_s: float, key: str | None = None) -> None:
        super().__init__("router", url, timeout_s, key)

    async def workers(self) -> dict[str, bool]:
        """URL of each worker, and whether the router thinks it healthy."""
        answer = await self._get("/workers")
        return {worker["url"]: worker["is_healthy"] for worker in answer["workers"]}

    async def wait_workers(self, deadline_s: float) -> dict[str, bool]:
        """As `workers`, of a router that may be about to start."""
        await self.wait_ready(deadline_s, path="/workers")
        return await self.workers()

    async def add(self, engine: EngineAddress, deadline_s: float) -> None:
        """Route to `engine`. Returns when the router sends it requests."""
        told: dict[str, Any] = {"url": engine.url}
        if self._key is not None:
            told["api_key"] = self._key
        if engine.kind != "regular":
            told["worker_type"] = engine.kind
        if engine.bootstrap_port is not None:
            told["bootstrap_port"] = engine.bootstrap_port
        await self._call("POST", "/workers", told)
        await self._until(engine, present=True, deadline_s=deadline_s)

    async def remove(self, engine: EngineAddress, deadline_s: float) -> None:
        """Stop routing to `engine`; one the router does not know is no error."""
        answer = await self._get("/workers")
        for worker in answer["workers"]:
            if worker["url"] == engine.url:
                await self._call("DELETE", f"/workers/{worker['id']}")
        await self._until(engine, present=False, deadline_s=deadline_s)

    async def _until(self, engine: EngineAddress, *, present: bool, deadline_s: float) -> None:
        """The router works on changes in the background and tells nobody when it is done."""
        with anyio.move_on_after(deadline_s):
            while True:
                healthy = (await self.workers()).get(engine.url)
                if healthy if present else healthy is None:
                    return
                await anyio.sleep(_START_INTERVAL_S)
        change = "routed" if present else "unrouted"
        raise EngineError(
            f"router {self.shown}: {engine.name} was not {change} in {deadline_s:g} s"
        )
