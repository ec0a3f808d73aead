"""What a process of a run is told: one JSON file per run, read by every role."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.errors import ConfigError
from agentrl.model_dir import CONFIG, decoder_config
from agentrl.models.routes import Routes
from agentrl.types import EngineAddress
from agentrl.wire.keys import CurveKeys, load_keys

__all__ = ["CopyAddress", "ModelFacts", "RunSpec", "key_files", "read_model_facts", "read_spec"]


class ModelFacts(msgspec.Struct, frozen=True):
    """What others than the learner need of a model. `routes`: where the experts go that engines
    chose; None where nobody asks for them."""

    vocab_size: int
    max_context: int
    routes: Routes | None = None


class CopyAddress(msgspec.Struct, frozen=True):
    """A copy of a service that each node has: under which name an Env finds it, where it listens,
    and what it is started from."""

    service: str
    url: str
    spec: ServiceSpec


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses and facts of a run, fixed before its processes start. Without engines there is no
    router either. Keys are told by the names of their files. `eval_sets`: those that flags name;
    `eval_engines`: those of evaluations that are apart, which no router knows; `push_ports`: where
    engines meet the learner in pushes; none: wherever a port is free. `copies`: those of services
    that each node has, by process; `copies_used`: by agent worker, those on its node."""

    config: RunConfig
    run_dir: str
    model_dir: str
    model: ModelFacts
    buffer_address: str
    router_url: str | None
    engines: list[EngineAddress]
    eval_engines: list[EngineAddress] = []
    services: dict[str, str]
    copies: dict[str, CopyAddress] = {}
    copies_used: dict[str, list[str]] = {}
    eval_sets: list[EvalSet] = []
    master_address: str
    master_port: int
    collective_address: str
    push_ports: list[int] = []
    keys_dir: str | None = None
    engine_key_file: str | None = None

    @property
    def all_engines(self) -> list[EngineAddress]:
        """Those of training and of evaluations."""
        return self.engines + self.eval_engines

    def services_of(self, worker: str) -> dict[str, str]:
        """The address of each service for this agent worker: of those that each node has, that of
        the copy on its own."""
        copies = [self.copies[name] for name in self.copies_used.get(worker, [])]
        return self.services | {copy.service: copy.url for copy in copies}

    def without_engines(self, names: Collection[str]) -> "RunSpec":
        """The same without these engines."""

        def left(engines: list[EngineAddress]) -> list[EngineAddress]:
            return [engine for engine in engines if engine.name not in names]

        return msgspec.structs.replace(
            self, engines=left(self.engines), eval_engines=left(self.eval_engines)
        )

    def peer_keys(self) -> CurveKeys | None:
        """What peers of the buffer show each other; None on one host. Read from their files."""
        return load_keys(Path(self.keys_dir)) if self.keys_dir else None


def read_spec(path: Path) -> RunSpec:
    """The specification at `path`."""
    return msgspec.json.decode(path.read_bytes(), type=RunSpec)


def key_files(spec: RunSpec) -> list[Path]:
    """The keys that every node needs."""
    engines = [Path(spec.engine_key_file)] if spec.engine_key_file else []
    return engines + (sorted(Path(spec.keys_dir).iterdir()) if spec.keys_dir else [])


def read_model_facts(model_dir: Path, context_limit: int | None) -> ModelFacts:
    """Vocabulary size and context of the Hugging Face model at `model_dir`.

    `context_limit` (--rollout-max-context-len, --eval-max-context-len) lowers the model's own.
    Raises ConfigError when the directory does not say.
    """
    config = decoder_config(model_dir)
    vocab, context = config.get("vocab_size"), config.get("max_position_embeddings")
    if not isinstance(vocab, int) or not isinstance(context, int):
        raise ConfigError(
            f"--hf-checkpoint {model_dir / CONFIG}: vocab_size and max_position_embeddings must be "
            "integers"
        )
    return ModelFacts(vocab, min(context, context_limit) if context_limit else context)
