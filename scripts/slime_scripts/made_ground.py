"""Stand-ins for what a launch script of slime names: models, converted models, files of rows.

A model's config.json is the published one (`scripts/model_facts.toml`), with the sizes that a
script gives for it, and its chat template is the published one's kind (`made_tokenizer.py`).
Weights are headers alone, which is what a dry run looks at.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.mtp import with_mtp
from agentrl.models.registry import Model, families, open_model
from agentrl.models.shapes import shapes_of, wholes_of
from scripts.header_only import write_model, write_torch_dist
from scripts.model_args import facts
from scripts.slime_scripts.made_tokenizer import write_tokenizer

__all__ = ["Ground", "architecture_of", "published", "trained"]

_NORM = "decoder.final_layernorm.weight"
#: The models that slime's scripts train: by parts of their names, those of `model_facts.toml`.
_MODELS = {
    r"DeepSeek-R1-Distill-Qwen-(\d+B)": r"qwen2.5-\1",
    r"Qwen2\.5-([\d.]+B)": r"qwen2.5-\1",
    r"Qwen3\.[56]-(\d+B-A\d+B)": r"qwen3.5-\1",
    r"Qwen3\.5-([\d.]+B)": r"qwen3.5-\1",
    r"Qwen3-Next-(\d+B-A\d+B)": r"qwen3-next-\1",
    r"Qwen3-4B-Instruct-2507": "qwen3-4B-Instruct-2507",
    r"Qwen3-(\d+B-A\d+B)": r"qwen3-\1",
    r"[Qq]wen3-([\d.]+)[Bb]": r"qwen3-\1B",
    r"GLM-4\.7-Flash": "glm4.7-30B-A3B",
    r"GLM-4\.\d-(\d+B-A\d+B)": r"glm4.5-\1",
    r"GLM-5\.2": "glm5.2-744B-A40B",
    r"GLM-5": "glm5-744B-A40B",
    r"GLM-.*-(\d+B)": r"glm4-\1",
    r"Moonlight": "moonlight",
    r"Kimi-K2-Thinking": "kimi-k2-thinking",
    r"Kimi-K2": "kimi-k2",
    r"DeepSeek-R1": "deepseek-v3",
    r"MiMo-7B": "mimo-7B-rl",
    r"MiniMax-M2": "minimax-m2",
}
_DELTA_NET = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
#: Published: keys that no argument of Megatron's follows from, by architecture.
_MORE: dict[str, dict[str, Any]] = {
    "Qwen3NextForCausalLM": _DELTA_NET,
    "Qwen3_5ForConditionalGeneration": _DELTA_NET,
    "Qwen3_5MoeForConditionalGeneration": _DELTA_NET,
}
#: Published: positions of the models of an architecture that agentrl trains.
_POSITIONS = {
    r"Qwen3-4B-Instruct-2507": 262144,
    r"[Qq]wen3-[\d.]+B": 40960,
    r"Qwen2\.5-": 32768,
    r"Qwen3\.[56]-": 262144,
    r"": 131072,
}
#: Keys of config.json that differ between models of one architecture, and the flags that give them.
_SIZES = {
    "num_hidden_layers": "--num-layers",
    "vocab_size": "--vocab-size",
    "rope_theta": "--rotary-base",
    "num_nextn_predict_layers": "--mtp-num-layers",
}


#: Published: what the files of engines hold that scripts write, by parts of their names: of each
#: model the groups, as kind, devices and devices of an engine; `{n}`: devices of the learner.
_Group = tuple[str, str, int | None]
_ENGINES: dict[str, list[list[_Group]]] = {
    r"sglang_mixed_offload": [[("regular", "4", 1)], [("regular", "4", 1)]],
    r"sglang_pd_mooncake": [[("prefill", "4", 4), ("decode", "4", 4)]],
    r"sglang_glm52": [[("prefill", "64", 64), ("decode", "192", 64)]],
    r"sglang_config": [
        [("regular", "{n}/2", 2), ("regular", "{n}/4", 1), ("placeholder", "{n}/4", None)]
    ],
}
#: Published: what the files of names for hooks hold, which lie beside the scripts.
_NAMES: dict[str, dict[str, Any]] = {
    "mis.yaml": {"use_tis": True, "mis_level": "token", "mis_mode": "truncate"},
    "geo3k_vlm_multi_turn_config.yaml": {
        "max_turns": 3,
        "rollout_interaction_env_path": "examples.geo3k_vlm_multi_turn.env_geo3k",
    },
}


def trained() -> frozenset[str]:
    """The architectures that agentrl trains, whose scripts have to pass but for what is named."""
    return frozenset(name for family in families().values() for name in family.architectures)


def architecture_of(checkpoint: str) -> str:
    """The architecture of a model, by the name of its checkpoint."""
    (name,) = _facts_of(checkpoint)["architectures"]
    return str(name)


def _facts_of(checkpoint: str) -> dict[str, Any]:
    for pattern, name in _MODELS.items():
        if found := re.search(pattern, checkpoint):
            return facts()[found.expand(name)]
    raise SystemExit(f"{checkpoint}: no model of model_facts.toml has this name; add it to _MODELS")


def published(said: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of what is `said` in `model_facts.toml`, and of what no argument follows from;
    its positions are the caller's to say, where they are not there."""
    (name,) = said["architectures"]
    model_type = name.partition("For")[0].lower()
    return {**said, **_MORE.get(name, {}), "model_type": model_type, "hidden_act": "silu"}


class Ground:
    """A folder in which the paths of a script lie, with the models and rows that it names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def placed(self, argv: Iterable[str]) -> list[str]:
        """`argv` with its absolute paths below the folder; what they name is made."""
        argv = [self._path(word) for word in argv]
        for place, word in enumerate(argv):
            if Path(word).name in _NAMES:
                argv[place] = str(self._names(word))
        given = _given(argv)
        for name in given.get("--hf-checkpoint", []):
            self._model(Path(name), given)
        for name in given.get("--ref-load", []):
            _converted(Path(name), Path(given["--hf-checkpoint"][-1]), given)
        names = ("input", "label", "metadata")
        keys = {name: given.get(f"--{name}-key", [""])[-1] for name in names}
        for name in [*given.get("--prompt-data", []), *given.get("--eval-prompt-data", [])]:
            if "/" in name:
                _rows(Path(name.partition("@")[0]), keys)
        for name in given.get("--sglang-config", []):
            _engines(Path(name), int(given["--actor-num-gpus-per-node"][-1]))
        for name in given.get("--eval-config", []):
            _sets(Path(name), keys)
        return argv

    def _path(self, word: str) -> str:
        return f"{self._folder}{word[word.index('/') :]}" if word.startswith(("/", "./")) else word

    def _names(self, word: str) -> Path:
        path = self._folder / word
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_NAMES[path.name]))  # which is YAML too
        return path

    def _model(self, folder: Path, given: Mapping[str, list[str]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(folder)
        config = published(_facts_of(str(folder)))
        for field, flag in _SIZES.items():
            if flag in given:
                config[field] = json.loads(given[flag][-1])
        positions = (n for part, n in _POSITIONS.items() if re.search(part, str(folder)))
        config.setdefault("max_position_embeddings", next(positions))
        (folder / "config.json").write_text(json.dumps(config))
        described = _described(folder, given)
        write_model(folder, {"norm": (8,)} if described is None else shapes_of(described))


def _given(argv: list[str]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag = word
            given.setdefault(flag, [])
        else:
            given[flag].append(word)
    return given


def _converted(folder: Path, model: Path, given: Mapping[str, list[str]]) -> None:
    """What slime's tool of conversion leaves of `model`."""
    if not (folder / "config.json").exists():
        described = _described(model, given)
        wholes = {_NORM: (8,)} if described is None else wholes_of(described)
        write_torch_dist(folder, wholes)


def _described(model: Path, given: Mapping[str, list[str]]) -> Model | None:
    """With the layers of multi-token prediction that a script trains; None for a model that is
    refused before its weights are looked at."""
    try:
        described = open_model(model, None)
        return with_mtp(described) if "--enable-mtp-training" in given else described
    except ConfigError:
        return None


def _sets(path: Path, keys: Mapping[str, str]) -> None:
    """A file of one evaluation set, with its rows beside it."""
    rows = path.with_suffix(".jsonl")
    _rows(rows, keys)
    text = f"eval: {{datasets: [{{name: made, path: {rows}, rm_type: math, top_p: 0.7}}]}}\n"
    path.write_text(text)


def _engines(path: Path, num_gpus: int) -> None:
    """A file of engines; of two models the second is none that is trained."""
    path.parent.mkdir(parents=True, exist_ok=True)
    models = next(models for part, models in _ENGINES.items() if re.search(part, path.name))
    said = [
        {
            "name": f"model-{index}",
            "update_weights": index == 0,
            "server_groups": [_engine_group(*group, num_gpus) for group in groups],
        }
        for index, groups in enumerate(models)
    ]
    path.write_text(json.dumps({"sglang": said}))  # which is YAML too


def _engine_group(kind: str, devices: str, size: int | None, num_gpus: int) -> dict[str, Any]:
    whole, _, part = devices.replace("{n}", str(num_gpus)).partition("/")
    group: dict[str, Any] = {"worker_type": kind, "num_gpus": int(whole) // int(part or 1)}
    return group if size is None else {**group, "num_gpus_per_engine": size}


def _rows(path: Path, keys: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    chat = [{"role": "user", "content": "What is 2 + 2?"}]
    answer = {"role": "assistant", "content": "4"}
    row: dict[str, Any] = {keys["input"] or "input": chat}
    if keys["label"]:
        row[keys["label"]] = "4"
    else:
        row["messages"] = [*chat, answer]
    if keys["metadata"]:
        row[keys["metadata"]] = {"source": "made"}
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 8), path)
        return
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(8)))
