"""`--sglang-router-ip`, `--sglang-router-port`: a router that somebody else started.

The run starts none of its own. It adds its engines to this one when they have weights, and takes
them out again; it neither starts nor stops the router. Flags alone are judged here.
"""

from collections.abc import Iterator
from ipaddress import ip_address

from agentrl.config.run import RunConfig

__all__ = ["about_external_router", "external_router_url"]

_IP, _PORT = "--sglang-router-ip", "--sglang-router-port"


def external_router_url(config: RunConfig) -> str | None:
    """The base URL of the router; None: the run starts one, or has no engines."""
    if config.sglang_router_ip is None or not config.num_engines:
        return None
    host = config.sglang_router_ip
    return f"http://{f'[{host}]' if ':' in host else host}:{config.sglang_router_port}"


def about_external_router(config: RunConfig) -> Iterator[str]:
    """What a router of somebody else cannot do, and an address that is none."""
    ip, port = config.sglang_router_ip, config.sglang_router_port
    if ip is None and port is None:
        return
    if ip is None or port is None:
        given, missing = (_PORT, _IP) if ip is None else (_IP, _PORT)
        yield f"{given}: give {missing} as well, or leave both out and the run starts a router"
        return
    if not ip or any(sign in ip for sign in "/@ "):
        yield f"{_IP} {ip!r}: write the address alone, as in 10.0.0.1"
        return
    if config.ray_address is None and config.started_engines and not _is_loopback(ip):
        yield (
            f"{_IP} {ip}: the engines of a run with a Ray of its own listen on loopback alone, so "
            "a router of another host cannot reach them; give --ray-address, or name a router of "
            "this host by 127.0.0.1"
        )
    if config.ray_address is not None and _is_loopback(ip):
        yield (
            f"{_IP} {ip}: every node of a cluster (--ray-address) has a loopback of its own; name "
            "the router by an address that all nodes reach"
        )
    if config.router:
        told = " ".join(f"--router-{name.replace('_', '-')}" for name in config.router)
        yield f"{told}: {_IP} names a router that runs already; give it these when it is started"
    if config.has_prefill_apart:
        yield (
            f"{_IP} and engines that prefill for others: the run must know that the router pairs "
            f"them, so it starts its own; leave out {_IP} and {_PORT}"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
