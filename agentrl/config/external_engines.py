"""`--rollout-external-engine-addrs`: SGLang servers that somebody else started, as engines.

The run samples from them and gives them weights; it neither starts nor stops them. What they say of
themselves is compared with the flags by `agentrl.serving.external`; flags alone are judged here.
"""

import os
from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from agentrl.config.run import RunConfig
from agentrl.visible import shown_url

__all__ = ["about_external_engines", "engine_urls", "external_key"]

_ADDRS, _KEY = "--rollout-external-engine-addrs", "--rollout-external-api-key-var"


def engine_urls(config: RunConfig) -> list[str]:
    """The base URLs of engines that somebody else started: `http://10.0.0.1:30000`."""
    return [_url(text) for text in config.rollout_external_engine_addrs]


def external_key(config: RunConfig) -> str | None:
    """The key that these engines want, from the variable that a flag names; None: they want
    none."""
    name = config.rollout_external_api_key_var
    if name is None or not config.rollout_external_engine_addrs:
        return None
    return os.environ.get(name)


def about_external_engines(config: RunConfig) -> Iterator[str]:
    """Addresses that are none, and what engines of somebody else cannot do."""
    if not config.rollout_external_engine_addrs:
        return
    yield from _about_addresses(config)
    yield from _about_key(config)
    if config.colocate:
        yield (
            f"{_ADDRS} and --colocate: engines that somebody else started have devices of their "
            "own, and give up no memory; leave out one of the two"
        )
    if config.replays_engine_routes:
        yield (
            f"{_ADDRS} and --use-rollout-routing-replay: engines that a run starts tell the "
            "experts of each token unasked, because the router passes on no wish for them; others "
            "do not. Leave out one of the two"
        )
    if config.update_weight_local_checkpoint_dir is not None:
        delta = ", --update-weight-mode delta" if config.update_weight_mode == "delta" else ""
        yield (
            f"{_ADDRS}{delta} and --update-weight-local-checkpoint-dir: copies are patched by "
            "engines that a run starts (POST /pull_weights), and SGLang's own server cannot; give "
            "--update-weight-mode full, with which engines read --update-weight-disk-dir itself"
        )


def _about_addresses(config: RunConfig) -> Iterator[str]:
    urls = engine_urls(config)
    wrong = [url for url in urls if not _is_address(url)]
    for url in wrong:
        yield (
            f"{_ADDRS} {shown_url(url)!r}: write HOST:PORT or http://HOST:PORT, an IPv6 address in "
            "brackets"
        )
    if len(set(urls)) < len(urls):
        yield f"{_ADDRS}: an address stands there twice; name each engine once"
    near = [shown_url(url) for url in urls if url not in wrong and _is_loopback(url)]
    if config.ray_address is not None and near:
        yield (
            f"{_ADDRS} {' '.join(near)}: every node of a cluster (--ray-address) has a loopback of "
            "its own; name an engine by an address that all nodes reach"
        )
    if config.update_weight_transport == "disk" or config.ray_address is not None or wrong:
        return
    afar = [shown_url(url) for url in urls if not _is_loopback(url)]
    if afar:
        yield (
            f"{_ADDRS} {' '.join(afar)}: a run with a Ray of its own listens on loopback alone, so "
            "no other host can join its collective; give --update-weight-transport disk with a "
            "folder that the engines see, or --ray-address, or name an engine of this host by "
            "127.0.0.1"
        )


def _about_key(config: RunConfig) -> Iterator[str]:
    name = config.rollout_external_api_key_var
    if name is None:
        return
    key = external_key(config)
    if not key:
        yield (
            f"{_KEY} {name}: there is no such variable here; export it with the key that the "
            "engines were started with (their --api-key)"
        )
    elif not key.isascii() or not key.isprintable() or key != key.strip():
        yield f"{_KEY} {name}: its value holds characters that no HTTP header can"


def _url(text: str) -> str:
    return (text if "://" in text else f"http://{text}").rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False
    return is_whole and url == f"http://{parts.netloc}" and "@" not in parts.netloc


def _is_loopback(url: str) -> bool:
    host = str(urlsplit(url).hostname)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
