"""What `--env-args` may say of `search-r1`: where passages come from, and what is rewarded."""

import math
import sys
from urllib.parse import urlsplit

import msgspec

from agentrl.envs.env import ServiceSpec
from agentrl.envs.search_r1.answer import exact_match, f1, is_well_formed
from agentrl.envs.search_r1.indexes import INDEXES, find_model
from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.nearest import nearest

__all__ = ["RETRIEVER", "Rewards", "service_of", "url_of"]

#: Name of the service that searches the bundled passages.
RETRIEVER = "retriever"


class Rewards(msgspec.Struct, frozen=True):
    """Weights of what makes a reward; each part lies in 0..1."""

    exact_match: float = 1.0
    f1: float = 0.0
    well_formed: float = 0.0

    def __post_init__(self) -> None:
        weights = msgspec.structs.asdict(self)
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()):
            raise ConfigError(f"search-r1: the weights {weights} must be finite, and 0 or more")
        if not any(weights.values()):
            raise ConfigError("search-r1: all weights are 0, so nothing would ever be rewarded")

    def of(self, text: str, golds: tuple[str, ...]) -> float:
        """The reward of a final turn's own words, where any of `golds` is right."""
        return (
            self.exact_match * exact_match(text, *golds)
            + self.f1 * f1(text, *golds)
            + self.well_formed * is_well_formed(text)
        )


def service_of(retriever: object) -> ServiceSpec | None:
    """The service that `retriever` needs; None for the URL of one that runs elsewhere.

    Raises ConfigError for what is neither an index nor a URL, and for an index whose model is not
    installed.
    """
    if url_of(retriever) is not None:
        return None
    module = "agentrl.envs.search_r1.retriever"
    argv = [sys.executable, "-m", module, "--host", "{host}", "--port", "{port}"]
    if retriever == "dense":
        try:
            find_model()
        except EnvironmentSetupError as error:
            raise ConfigError(f"search-r1: {error}") from error
    return ServiceSpec(RETRIEVER, [*argv, "--index", str(retriever)], "/health")


def url_of(retriever: object) -> str | None:
    """The address of a retriever that runs elsewhere, without its `/retrieve`; None for an index.

    Raises ConfigError for what is neither, and for an address with a password in it: addresses
    stand in logs and in the configuration of a run.
    """
    if retriever in INDEXES:
        return None
    advice = f"it is one of {', '.join(INDEXES)}, or an address such as http://10.0.0.5:8000"
    if not isinstance(retriever, str) or "://" not in retriever:
        near = nearest(str(retriever), INDEXES)
        raise ConfigError(f"search-r1: there is no retriever {retriever!r}{near}; {advice}")
    try:
        parts = urlsplit(retriever)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment:
        raise ConfigError(f"search-r1: {retriever!r} is no address of a retriever; {advice}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("search-r1: the retriever's address may hold no user and no password")
    return retriever.rstrip("/").removesuffix("/retrieve")
