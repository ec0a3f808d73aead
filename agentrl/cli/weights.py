"""The weights of a run, judged before anything starts: by headers, manifests and sizes alone.

What is read are the places that the learner will read: --hf-checkpoint, and what --load and
--ref-load name, each a Hugging Face model, a checkpoint in Megatron's format, or a run's
checkpoints. All that differs is told at once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.answers import about_missing
from agentrl.config.first_weights import kept_of, megatrons_of, models_of, passengers_of
from agentrl.config.megatron import MegatronSettings
from agentrl.config.refusals import gather
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.model_dir import quantization

if TYPE_CHECKING:
    from agentrl.models.registry import Model

__all__ = ["check_weights"]


def check_weights(config: RunConfig, model: "Model", policy: "Model") -> list[str]:
    """Notes for the user on the weights that a run of `model` begins with. `policy`: the same, with
    the layers of multi-token prediction that it trains. Raises ConfigError for those of another
    model or type, and DataError for damaged checkpoints of a run."""
    return gather(partial(_check_precision, config), *_checks(config, model, policy))


def _checks(
    config: RunConfig, model: "Model", policy: "Model"
) -> Iterator[Callable[[], list[str] | None]]:
    named = models_of(config)
    if config.has_engines or config.load is None:
        named = {"--hf-checkpoint": str(config.hf_checkpoint), **named}
    firsts = str(config.hf_checkpoint) if config.load is None else config.load

    def read_by(place: str) -> "Model":
        return policy if place == firsts else model

    for flag, place in named.items():
        yield partial(_check_model, flag, Path(place), config, read_by(place))
    for flag, place in megatrons_of(config).items():
        yield partial(_check_megatrons, flag, Path(place), config, read_by(place))
    for flag, place in kept_of(config).items():
        yield partial(_check_kept, flag, Path(place), config, read_by(place))
    yield partial(_check_passengers, config, policy)


def _check_model(flag: str, place: Path, config: RunConfig, model: "Model") -> list[str]:
    from agentrl.config.weights import read_shapes
    from agentrl.models.headers import check_model, check_types
    from agentrl.models.registry import open_model

    if quantization(place, flag):  # refused already, or served and read by no learner
        return []
    if flag != "--hf-checkpoint" or config.load is None:
        check_types(place)
    if read_shapes(place):
        _naming(flag, lambda: check_model(place, model, open_model(place, config.model_family)))
    return list(_about_rounding(flag, place, config, model))


def _about_rounding(flag: str, place: Path, config: RunConfig, model: "Model") -> Iterator[str]:
    """A note on single tensors that are in float32 beside others in bfloat16, such as the `A_log`
    of delta nets: with --bf16 the learner has all weights in bfloat16, but for the correction bias
    of a router."""
    from agentrl.config.weights import read_types

    types = read_types(place)
    biases = [part.hf for part in model.family.parts if part.key.endswith(".expert_bias")]
    kept = tuple(name.rpartition(".")[2] for names in biases for name in names)
    wide = [
        name
        for name, kind in types.items()
        if kind == "F32" and not name.endswith(kept) and not model.is_passenger(name)
    ]
    is_bf16 = MegatronSettings.from_config(config).bf16
    if is_bf16 and wide and "BF16" in types.values():
        yield (
            f"{flag} {place} has single tensors in float32 ({len(wide)}, such as {min(wide)}) and "
            "others in bfloat16: with --bf16 the learner rounds them to bfloat16"
        )


def _check_megatrons(flag: str, place: Path, config: RunConfig, model: "Model") -> list[str]:
    """A model that does not train layers of multi-token prediction passes over those there."""
    from agentrl.config.torch_dist import folder_of, read_header
    from agentrl.models.headers import check_header, without_mtp

    folder = folder_of(place)
    header = read_header(folder)
    kept = header if model.architecture.mtp_num_layers else without_mtp(header)
    _naming(flag, check_header, folder, kept, model)
    if kept.tensors.keys() == header.tensors.keys() or str(place) != config.load:
        return []
    note = (
        f"{flag} {place} has layers of multi-token prediction, which are not trained without "
        "--enable-mtp-training: models that are saved have those of --hf-checkpoint"
    )
    return [note]


def _check_kept(flag: str, place: Path, config: RunConfig, model: "Model") -> list[str]:
    """The newest whole one of a run's checkpoints, which is what the learner takes."""
    from agentrl.config.torch_dist import Header, read_index, weights_in
    from agentrl.learner.checkpoints import DIGESTED_BYTES, find_whole
    from agentrl.models.headers import check_header, without_mtp

    try:
        found, damaged = find_whole(place, DIGESTED_BYTES)
    except DataError as error:
        others = "--ref-load, else of --hf-checkpoint" if flag == "--load" else "--hf-checkpoint"
        raise DataError(
            f"{flag} {place} (without {flag} the weights are those of {others}): {error}"
        ) from None
    if found is None:
        raise ConfigError(f"{flag} {place}: there is no checkpoint")
    weights = weights_in(found.state, read_index(found.state))
    header = Header(weights, {})
    if str(place) != config.load and not model.architecture.mtp_num_layers:
        header = without_mtp(header)
    _naming(flag, check_header, found.directory, header, model)
    notes = [f"{flag} passes over what is damaged: {why}" for why in damaged]
    if damaged:
        notes.append(f"{flag} {place}: {found.directory.name} is the newest that is whole")
    if (size := sum(file.num_bytes for file in found.manifest.files.values())) > DIGESTED_BYTES:
        notes.append(
            f"{flag} {found.directory}: of its {size} bytes, the contents of files of at most "
            f"{DIGESTED_BYTES} together are verified now, and all by the learner"
        )
    return notes


def _check_passengers(config: RunConfig, policy: "Model") -> None:
    """Those of --hf-checkpoint where it gives no weights, and is not refused as quantized: all
    other types are compared already."""
    from agentrl.models.headers import check_passengers

    place = Path(str(config.hf_checkpoint))
    if config.load is None or config.eval_only or passengers_of(config, place) != place:
        return
    if not config.plays_only and not (config.has_engines and quantization(place)):
        _naming("--hf-checkpoint", check_passengers, place, policy)


def _naming(flag: str, check: Callable[..., None], *what: object) -> None:
    """`check`, whose refusals name the flag."""
    try:
        check(*what)
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from None


def _check_precision(config: RunConfig) -> None:
    """Refuse quantized weights where they would be trained, and engines of such a model where the
    learner pushes, which it does for an evaluation too: its weights come without the scales that
    such engines expect. Engines that are never pushed to may serve one."""
    flag, origin = "--hf-checkpoint", Path(str(config.hf_checkpoint))
    has_pushes = config.has_engines and not config.plays_only
    if has_pushes and (kind := quantization(origin)):
        raise ConfigError(
            f"{flag} {origin} (quantization_config: {kind}): engines that serve quantized weights "
            "cannot take those that the learner pushes, whatever --load names; give the same model "
            f"in bfloat16 or float32 to {flag}"
        )
    places = models_of(config)
    if not config.has_engines and config.load is None:
        places = {flag: str(origin), **places}
    for flag, place in places.items():
        if kind := quantization(Path(place), flag):
            what = f"{flag} {place} (quantization_config: {kind})"
            raise ConfigError(about_missing("low-precision", [what]))
