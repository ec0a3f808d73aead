"""What an SGLang engine sets of NCCL's environment, so that the learner can have the same.

Learner and engines are ranks of one communicator in a push. NCCL chooses how ranks reach each other
by NCCL_CUMEM_ENABLE; ranks that disagree fail or hang in the first broadcast. SGLang decides in its
`entrypoints.engine._set_envs_and_config`; a contract test runs that function and compares.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["NcclEnvironment", "nccl_environment"]


class NcclEnvironment(msgspec.Struct, frozen=True):
    """`defaults` give way to what the environment says already, `forced` do not."""

    defaults: dict[str, str]
    forced: dict[str, str]


def nccl_environment(sglang: Mapping[str, Any]) -> NcclEnvironment:
    """NCCL's variables in an engine on one node with the ServerArgs fields `sglang`."""
    symmetric = bool(sglang.get("enable_symm_mem"))
    multicast = bool(sglang.get("enable_nccl_nvls")) or symmetric
    shards_cache = bool(sglang.get("enable_kv_cache_sharding"))
    shards_cache &= not sglang.get("enable_memory_saver")
    values = {
        "NCCL_CUMEM_ENABLE": (symmetric or shards_cache, symmetric),
        "NCCL_NVLS_ENABLE": (multicast, multicast),
    }
    return NcclEnvironment(
        defaults={name: str(int(on)) for name, (on, force) in values.items() if not force},
        forced={name: str(int(on)) for name, (on, force) in values.items() if force},
    )
