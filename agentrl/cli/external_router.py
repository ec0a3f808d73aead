"""Before the start: whether the router of `--sglang-router-ip` is there, wants no other key, and
routes to nobody but the engines of this run."""

import anyio

from agentrl.config.external_engines import engine_urls, external_key
from agentrl.config.external_router import about_external_router, external_router_url
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.serving.http_control import EngineRefusedError
from agentrl.serving.router_control import RouterControl

__all__ = ["check_external_router"]

#: Seconds that the router may take for its answer.
_ASK_S = 30.0
_UNAUTHORIZED = 401


def check_external_router(config: RunConfig, *, dry_run: bool = False) -> list[str]:
    """Notes for the user. Raises ConfigError with what is wrong with the router. For a dry run it
    need not be there; an address that is none is refused elsewhere."""
    url = external_router_url(config)
    if url is None or list(about_external_router(config)):
        return []
    whose = f"--sglang-router-ip {config.sglang_router_ip}, port {config.sglang_router_port}"
    try:
        others = anyio.run(_workers, url, external_key(config)) - set(engine_urls(config))
    except EngineError as error:
        if isinstance(error, EngineRefusedError) and error.status == _UNAUTHORIZED:
            raise ConfigError(
                f"{whose}: the router wants a key; start it without --api-key, since the engines "
                "of each run have a key of their own"
            ) from error
        if dry_run:
            return [f"{whose}: not checked, and a run needs it: {error}"]
        raise ConfigError(
            f"{whose}: {error}; start it first, with `python -m sglang_router.launch_router "
            f"--port {config.sglang_router_port} --policy manual --disable-retries`, or leave out "
            "both flags and the run starts its own"
        ) from error
    if others:
        raise ConfigError(
            f"{whose}: it routes to {', '.join(sorted(others))}, which are no engines of this run "
            "and would be given its turns; take them out (DELETE /workers/ID), or start another "
            "router"
        )
    note = (
        f"{whose}: the router's settings are not known here: with --policy manual a conversation "
        "keeps the engine that has its cache, and with --disable-retries no turn is sampled twice"
    )
    return [note]


async def _workers(url: str, key: str | None) -> set[str]:
    async with RouterControl(url, timeout_s=_ASK_S, key=key) as router:
        return set(await router.workers())
