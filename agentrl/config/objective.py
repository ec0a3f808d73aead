"""Rules between the flags of the loss: combinations that would train something else are refused."""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_objective"]


def about_objective(config: RunConfig) -> Iterator[str]:
    """What contradicts itself in the flags of the loss, with the numbers."""
    if config.tis_clip_low > config.tis_clip:
        yield (
            f"--tis-clip-low {config.tis_clip_low:g} is above --tis-clip {config.tis_clip:g}; "
            "no weight lies between them"
        )
    if config.eps_clip > 1:
        yield (f"--eps-clip {config.eps_clip:g}: a ratio cannot fall below 0; use 1 or less")
    if config.min_lr > config.lr:
        yield (f"--min-lr {config.min_lr:g} is above --lr {config.lr:g}; a decay would rise")
    if config.loss_type == "custom_loss" and config.custom_loss_function_path is None:
        yield (
            "--loss-type custom_loss and --custom-loss-function-path belong together; give both or "
            "neither"
        )
    if not config.is_supervised:
        return
    if config.prompt_data is None:
        yield (
            "--loss-type sft_loss needs --prompt-data: a JSONL file whose rows hold a dialogue "
            f"under {config.input_key!r} (--input-key)"
        )
    if config.n_samples_per_prompt != 1:
        yield (
            f"--n-samples-per-prompt {config.n_samples_per_prompt} with --loss-type sft_loss: a "
            "demonstration is one dialogue; leave it at 1"
        )
