"""What a lab is made of: the flags of a small run, its places, and its addresses."""

from pathlib import Path
from typing import Any

from agentrl.cluster.ports import free_ports
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.run import RunConfig
from agentrl.serving.launch import router_command
from agentrl.types import EngineAddress

__all__ = ["CONTEXT", "FLAGS", "TURN_S", "places_of", "router_flags", "spec_of"]

CONTEXT, VOCAB = 256, 720
#: Seconds after which a run gives up a turn; twice that, an episode; half of it, a push.
TURN_S = 60.0
#: Flags of a small run; a test changes what it is about.
FLAGS: dict[str, Any] = {
    "rollout_batch_size": 4,
    "n_samples_per_prompt": 2,
    "async_buffer_size": 2,
    "save_interval": 2,
    "num_agent_workers": 2,
    "rollout_num_gpus": 2,
    "actor_num_gpus_per_node": 1,
    "sglang_server_concurrency": 16,
    "max_concurrent_episodes": 16,
    "rollout_max_response_len": 6,
    "rollout_stop_token_ids": list(range(0, 700, 3)),
    "turn_timeout_s": TURN_S,
    "episode_timeout_s": 2 * TURN_S,
    "update_weights_timeout": TURN_S / 2,
    "max_tokens_per_gpu": 4096,
    "env": "tests.faults.env:LabEnv",
    "run_id": "run",
}


def places_of(run: Path, model: Path) -> dict[str, Any]:
    return {
        "run_dir": str(run.parent),
        "save": str(run / "recovery"),
        "save_hf": str(run / "hf"),
        "hf_checkpoint": str(model),
    }


def spec_of(config: RunConfig, run: Path, model: Path, address: str) -> RunSpec:
    router, *ports = free_ports(config.num_engines + 2)
    engines = [
        EngineAddress(f"engine-{i}", f"http://127.0.0.1:{port}")
        for i, port in enumerate(ports[: config.num_engines])
    ]
    return RunSpec(
        config=config,
        run_dir=str(run),
        model_dir=str(model),
        model=ModelFacts(VOCAB, CONTEXT),
        buffer_address=address,
        router_url=f"http://127.0.0.1:{router}",
        engines=engines,
        services={"prometheus": str(ports[-1])},
        master_address="127.0.0.1",
        master_port=0,
        collective_address="127.0.0.1",
    )


def router_flags(spec: RunSpec) -> list[str]:
    assert spec.router_url is not None
    command = router_command(
        port=int(spec.router_url.rpartition(":")[2]),
        prometheus_port=int(spec.services["prometheus"]),
        turn_timeout_s=spec.config.turn_timeout_s,
        extra={},
    )
    return list(command.argv[3:])
