"""Whether an SGLang server that somebody else started can be an engine of a run: what it says of
itself, against what the run's own engines are started with. Pure.

Refused is what would make its log-probabilities others than those of the weights that it is given,
or keep a push from reaching them. As in slime, a `--sglang-FIELD` that is given has to be so there
too; fields that only size a server are noted. What a server does not tell is not judged.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.device_defaults import engine_dtype
from agentrl.config.run import RunConfig
from agentrl.model_dir import CONFIG, decoder_config, read_config
from agentrl.paths import kind_of
from agentrl.serving.control import EngineInfo
from agentrl.serving.seals import UNPUBLISHED

__all__ = ["Wanted", "notes_on_server", "refusals_of_server"]

_SAMPLES = "its log-probabilities would not be those of the weights that it is given"
_PUSHES = "a push would not reach its weights as they are"
_RANKS = "a push counts one rank for each device of --rollout-num-gpus-per-engine"
_ALONE = "it would not sample whole turns by itself"
_GIVE = "give the flag with --sglang- before it as well, if it is meant"
_NCCL = "learner and engine have to set up NCCL alike"
#: ServerArgs fields that matter whether or not they are given: their value in engines that a run
#: starts, and why another one is refused.
_OURS: dict[str, tuple[Any, str]] = {
    "quantization": (None, _SAMPLES),
    "rl_quant_profile": (None, _SAMPLES),
    "modelopt_quant": (None, _SAMPLES),
    "kv_cache_dtype": ("auto", _SAMPLES),
    "speculative_algorithm": (None, f"a push does not reach a draft; {_GIVE}"),
    "dllm_algorithm": (None, _SAMPLES),
    "preferred_sampling_params": (None, _SAMPLES),
    "json_model_override_args": ("{}", _SAMPLES),
    "rl_on_policy_target": (None, _SAMPLES),
    "enable_fp32_lm_head": (False, _SAMPLES),
    "enable_deterministic_inference": (False, f"turns would be drawn by one seed; {_GIVE}"),
    "enable_lora": (None, _PUSHES),
    "lora_paths": (None, _PUSHES),
    "cpu_offload_gb": (0, _PUSHES),
    "pp_size": (1, _RANKS),
    "dp_size": (1, _RANKS),
    "attn_dp_size": (1, "turns are not sent to its groups of ranks as to those of own engines"),
    "disaggregation_mode": ("null", _ALONE),
    "encoder_only": (False, _ALONE),
    "is_embedding": (False, _ALONE),
}
#: As above, where weights go over a collective.
_COLLECTIVE: dict[str, tuple[Any, str]] = {
    "enable_symm_mem": (False, _NCCL),
    "enable_nccl_nvls": (False, _NCCL),
    "enable_kv_cache_sharding": (False, _NCCL),
}
#: Fields of which slime lets the server have its own; the device and its ranks are compared by
#: rules of their own.
_SIZES = {
    *("mem_fraction_static", "random_seed", "trust_remote_code", "skip_server_warmup"),
    *("enable_metrics", "gpu_id_step", "base_gpu_id", "nccl_port", "dist_init_addr"),
}
_OWN_RULE = ("dtype", "tp_size", "skip_tokenizer_init")
_OFF: tuple[Any, ...] = (None, False, 0, "", "null", "none", "{}", [], {})
#: Of a model's config.json: numbers that two models of the same shapes and results share.
_NUMBERS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "num_experts"),
)
#: Tokens of its context, at most, that a server keeps for itself.
_KEPT = 16


class Wanted(msgspec.Struct, frozen=True):
    """What a run wants of such a server.

    config       resolved for the run's device
    model_dir    --hf-checkpoint
    version      the release of SGLang that is installed here; None: there is none
    max_context  tokens of the longest episode
    has_stops    some turns end at strings
    key          what is shown to the server
    """

    config: RunConfig
    model_dir: Path
    version: str | None
    max_context: int
    has_stops: bool
    key: str | None


def refusals_of_server(wanted: Wanted, said: EngineInfo) -> Iterator[str]:
    """A line for each reason why the server cannot be an engine of the run."""
    server, config = said.server, wanted.config
    ours, theirs = _release(wanted.version), _release(server.get("version"))
    if ours and theirs and ours != theirs:
        yield (
            f"it runs SGLang {server['version']}, and this is written for {wanted.version}, which "
            "is installed here: calls and answers differ between releases; start it with the same"
        )
    admin = server.get("admin_api_key")
    if admin and admin != wanted.key:
        yield (
            "it wants its --admin-api-key for weight pushes, and another key for turns: start it "
            "with --api-key alone"
        )
    yield from _about_fields(config, server)
    yield from _about_dtype(config, server, wanted.model_dir)
    yield from _about_model(said, wanted.model_dir)
    if wanted.has_stops and server.get("skip_tokenizer_init"):
        yield (
            "turns end at strings (--rollout-stop), which an engine looks for with its tokenizer: "
            "start it without --skip-tokenizer-init"
        )
    limit = server.get("max_req_input_len")
    if limit is not None and wanted.max_context - limit > _KEPT:
        yield (
            f"it reads at most {limit} tokens, and an episode may have {wanted.max_context}: start "
            "it with a longer --context-length or more memory (--mem-fraction-static), or give "
            f"--rollout-max-context-len {limit}"
        )
    if (label := server.get("weight_version", "default")) not in UNPUBLISHED:
        yield (
            f"it was started with --weight-version {label}, which could pass for a version of the "
            "run: start it without"
        )


def notes_on_server(wanted: Wanted, said: EngineInfo) -> Iterator[str]:
    """What runs but deserves a look."""
    server = said.server
    for field in sorted(_SIZES & wanted.config.sglang.keys()):
        if field in server and not _same(server[field], wanted.config.sglang[field]):
            yield f"{_flag(field)} is {server[field]!r} there, whatever this command line says"
    if "api_key" in server and not server["api_key"] and not server.get("admin_api_key"):
        yield (
            "it wants no key: whoever reaches it can change its weights, and the run ends when "
            "somebody does"
        )
    if _their_model(server) is None:
        yield (
            f"its model {server.get('model_path')} cannot be read here: that it has the sizes of "
            f"{wanted.model_dir} was not looked at, and a push of others fails"
        )


def _about_fields(config: RunConfig, server: Mapping[str, Any]) -> Iterator[str]:
    matters = dict(_OURS)
    if config.update_weight_transport == "nccl":
        matters |= _COLLECTIVE
        matters["device"] = (config.device, "a collective is NCCL's on GPUs and gloo's on a CPU")
        matters["tp_size"] = (config.rollout_num_gpus_per_engine, _RANKS)
    for field, value in config.sglang.items():
        if field not in _SIZES and field not in _OWN_RULE:
            why = matters[field][1] if field in matters else "that was given for all engines"
            matters[field] = (value, why)
    for field, (value, why) in matters.items():
        if field in server and not _same(server[field], value):
            yield f"{_flag(field)} is {server[field]!r} there and {value!r} here: {why}"


def _about_dtype(config: RunConfig, server: Mapping[str, Any], model_dir: Path) -> Iterator[str]:
    """SGLang takes `auto` from the checkpoint, but float32 it makes something else."""
    wanted, theirs = engine_dtype(config), server.get("dtype")
    theirs = {"half": "float16", "float": "float32"}.get(str(theirs), theirs)
    if theirs is None or wanted == "auto":
        return
    if theirs == "auto":
        text = read_config(model_dir)
        theirs = text.get("dtype") or text.get("torch_dtype") or "float32"
        theirs = "auto" if theirs == "float32" else theirs
    if theirs != wanted:
        yield (
            f"it computes in {theirs}, and {wanted} is wanted beside this learner: start it with "
            f"--dtype {wanted}"
        )


def _about_model(said: EngineInfo, model_dir: Path) -> Iterator[str]:
    ours = read_config(model_dir)
    for name in ("architectures", "model_type"):
        theirs = said.model.get(name)
        if theirs is not None and ours.get(name) is not None and theirs != ours[name]:
            yield f"its model has {name} {theirs!r}, and {model_dir} has {ours[name]!r}"
            return
    place = _their_model(said.server)
    if place is None:
        return
    own = decoder_config(model_dir)
    other = decoder_config(place, "--rollout-external-engine-addrs: the model")
    for name in _NUMBERS:
        if own.get(name) != other.get(name):
            yield (
                f"its model {place} has {name} {other.get(name)!r}, and {model_dir} has "
                f"{own.get(name)!r}"
            )


def _their_model(server: Mapping[str, Any]) -> Path | None:
    """Where the model lies that it began with, if that can be read here."""
    place = Path(str(server.get("model_path")))
    return place if kind_of(place / CONFIG) == "a file" else None


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one in _OFF and other in _OFF)


def _release(version: Any) -> tuple[str, ...]:
    """`0.5.23` of `0.5.23.post1`."""
    return tuple(str(version).split("+")[0].split(".")[:3]) if version else ()


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
