"""Write `agentrl/config/tables/{sglang,router,megatron}.json` from the installed packages.

The tables hold names, kinds, choices, help and defaults of flags that agentrl passes through, so
that parsing and `--help` import none of these packages. SGLang and the router are asked through
their own argument parsers; Megatron-core through the source of its configuration classes, to which
`LAUNCHER` adds the names that only Megatron's launcher defines.

    python scripts/gen_flags.py            write the tables
    python scripts/gen_flags.py --check    exit 1 if they differ from the installed packages
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "agentrl" / "config" / "tables"
STANDINS = ROOT / "agentrl" / "serving" / "standins"

#: Where an argparse `type` is not a plain one: the value is passed on as it was written.
_KINDS = {"int": "int", "float": "float", "loads": "json"}

#: (file under megatron/core, class)
MEGATRON_CLASSES = (
    ("model_parallel_config.py", "ModelParallelConfig"),
    ("transformer/transformer_config.py", "TransformerConfig"),
    ("transformer/transformer_config.py", "MLATransformerConfig"),
    ("optimizer/optimizer_config.py", "OptimizerConfig"),
    ("distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
)

#: Flags of Megatron's launcher and of slime's model files that no configuration class of
#: megatron.core has: name -> (kind, help).
LAUNCHER: dict[str, tuple[str, str]] = {
    "accumulate-allreduce-grads-in-fp32": ("bool", "Keep and reduce gradients in float32"),
    "add-qkv-bias": ("bool", "Biases in the query, key and value projections"),
    "decoder-first-pipeline-num-layers": ("int", "Layers of the first pipeline stage"),
    "decoder-last-pipeline-num-layers": ("int", "Layers of the last pipeline stage"),
    "distributed-timeout-minutes": ("float", "Deadline of a collective, in minutes"),
    "enable-experimental": ("bool", "Allow experimental features of Megatron-core"),
    "finetune": ("bool", "Begin a new run with the weights of --load alone"),
    "group-query-attention": ("bool", "Grouped queries (see --num-query-groups)"),
    "make-vocab-size-divisible-by": ("int", "Pad the vocabulary to a multiple of this"),
    "max-position-embeddings": ("int", "Longest sequence that the model was made for"),
    "moe-shared-expert-gate": ("bool", "Gate the output of the shared experts"),
    "no-load-optim": ("bool", "Take the weights of --load, and leave its optimizer"),
    "num-layers-per-virtual-pipeline-stage": ("int", "Layers of an interleaved stage"),
    "num-virtual-stages-per-pipeline-rank": ("int", "Interleaved stages of a rank"),
    "num-experts": ("int", "Experts of a mixture-of-experts layer"),
    "position-embedding": ("bool", "Position embeddings (--no-position-embedding: none)"),
    "position-embedding-type": ("str", "Kind of position embedding"),
    "post-mlp-layernorm": ("bool", "Normalize the output of the MLP"),
    "post-self-attn-layernorm": ("bool", "Normalize the output of self-attention"),
    "recompute-activations": ("bool", "Recompute attention in the backward pass"),
    "rope-fusion": ("bool", "Fused rotary embedding (--no-rope-fusion: not fused)"),
    "rope-scaling-factor": ("float", "Factor of --use-rope-scaling"),
    "rotary-base": ("float", "Base of the rotary embedding"),
    "rotary-percent": ("float", "Share of each head that is rotated"),
    "seq-length": ("int", "Longest sequence in training"),
    "spec": ("strs", "Module and function that build the layers"),
    "swiglu": ("bool", "Gated MLP with SiLU"),
    "transformer-impl": ("str", "Implementation of the layers"),
    "untie-embeddings-and-output-weights": ("bool", "Separate embedding and output weights"),
    "use-gated-attention": ("bool", "Gate the output of attention"),
    "use-rope-scaling": ("bool", "Scale the rotary embedding as Llama 3 does"),
    "use-rotary-position-embeddings": ("bool", "Rotary position embeddings"),
    "vocab-size": ("int", "Entries of the vocabulary before padding"),
}


def clean(text: str | None) -> str:
    """The first sentence, on one line."""
    words = " ".join((text or "").split()).replace("%%", "%")
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", words, maxsplit=1)[0]


# ---- parsers of SGLang and the router -----------------------------------------------------------


def from_parser(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """One entry per optional argument."""
    entries = []
    for action in parser._actions:
        names = [n for n in action.option_strings if not n.startswith("--no-")]
        if not names or action.dest == "help":
            continue
        # Whoever starts the program spells a key as `--KEY`, so it must be one of the names.
        by_name = f"--{action.dest.replace('_', '-')}" in names
        key = action.dest if by_name else names[0].lstrip("-").replace("-", "_")
        entry: dict[str, Any] = {"key": key, "names": names, "kind": _kind(action)}
        if action.choices is not None:
            # Some parsers take theirs from sets, whose order changes from process to process.
            entry["choices"] = sorted(str(choice) for choice in action.choices)
        entries.append(entry | {"help": clean(action.help)} | _default(action.default))
    return entries


def _default(value: object) -> dict[str, str]:
    """As it would be typed; nothing where the program has none, or the switch is off."""
    if value is None or value is False or value in ("", [], {}, argparse.SUPPRESS):
        return {}
    if value is True:
        return {"default": "on"}
    return {"default": " ".join(map(str, value)) if isinstance(value, list) else str(value)}


def _kind(action: argparse.Action) -> str:
    if action.nargs == 0 or action.const is not None:
        return "bool"
    kind = _KINDS.get(getattr(action.type, "__name__", "str"), "str")
    return f"{kind}s" if action.nargs in ("+", "*") else kind


def sglang_entries() -> list[dict[str, Any]]:
    """SGLang's own parser, in a process of its own: it imports torch and the import stand-ins."""
    command = [sys.executable, __file__, "--dump-sglang"]
    env = os.environ | {"PYTHONPATH": str(STANDINS), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return list(json.loads(result.stdout.splitlines()[-1]))


def dump_sglang() -> None:
    """Print SGLang's entries as one line of JSON."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    print(json.dumps(from_parser(parser)))


def router_entries() -> list[dict[str, Any]]:
    """The router's own parser."""
    from sglang_router.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    return [e for e in from_parser(parser) if e["names"][0].startswith("--")]


# ---- configuration classes of Megatron-core -----------------------------------------------------


def megatron_entries() -> list[dict[str, Any]]:
    """Fields of the configuration classes, then the launcher's own names."""
    spec = util.find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    entries: dict[str, dict[str, Any]] = {}
    for file, name in MEGATRON_CLASSES:
        for entry in class_entries(Path(spec.origin).parent / file, name):
            entries.setdefault(entry["key"], entry)
    for flag, (kind, text) in LAUNCHER.items():
        key = flag.replace("-", "_")
        entries[key] = {"key": key, "names": [f"--{flag}"], "kind": kind, "help": text}
    return sorted(entries.values(), key=lambda entry: entry["key"])


def class_entries(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """The annotated fields of a class that a command line can express."""
    tree = ast.parse(path.read_text())
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_"):
            continue
        if (described := _annotation(ast.unparse(node.annotation))) is None:
            continue
        flag = _flag(node) or node.target.id.replace("_", "-")
        key = flag.removeprefix("no-").replace("-", "_")
        yield {
            "key": key,
            "names": [f"--{key.replace('_', '-')}"],
            **described,
            "help": _doc(after),
        }


def _annotation(text: str) -> dict[str, Any] | None:
    """Kind and choices of an annotation; None for what only code can give."""
    if re.search(r"Callable|dtype|Predicate|Timers|Quantizer|RecipeConfig|ProcessGroup", text):
        return None
    inner = re.sub(r"^Optional\[(.*)\]$", r"\1", text)
    if inner.startswith("Literal["):
        values = ast.literal_eval(inner.removeprefix("Literal"))
        return {"kind": "str", "choices": list(map(str, values))}
    if inner == "List[str]":
        return {"kind": "strs"}
    inner = re.sub(r"^Union\[float, List\[float\]\]$", "float", inner)
    return {"kind": inner if inner in ("int", "float", "bool") else "str"}


def _flag(node: ast.AnnAssign) -> str | None:
    """The flag's name where the field's metadata gives one."""
    found = re.search(r"'arg_names': \['--([a-z0-9-]+)'", ast.unparse(node))
    return found[1] if found else None


def _doc(after: ast.stmt | None) -> str:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return clean(str(after.value.value))
    return ""


# ---- files --------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """File name -> text."""
    found = {
        "sglang": ("sglang", sglang_entries()),
        "router": ("sglang-router", router_entries()),
        "megatron": ("megatron-core", megatron_entries()),
    }
    texts = {}
    for name, (package, entries) in found.items():
        head = {"package": package, "version": metadata.version(package)}
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        texts[f"{name}.json"] = json.dumps(head)[:-1] + f', "flags": [\n{lines}\n]}}\n'
    return texts


def main() -> int:
    if "--dump-sglang" in sys.argv:
        dump_sglang()
        return 0
    texts = tables()
    stale = [n for n, t in texts.items() if not (f := TABLES / n).exists() or f.read_text() != t]
    if "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}; run scripts/gen_flags.py" if stale else "up to date")
        return 1 if stale else 0
    TABLES.mkdir(exist_ok=True)
    for name, text in texts.items():
        (TABLES / name).write_text(text)
        print(f"agentrl/config/tables/{name}: {len(json.loads(text)['flags'])} flags")
    return 0


if __name__ == "__main__":
    sys.exit(main())
