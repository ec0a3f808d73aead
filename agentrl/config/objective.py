"""Rules between the flags of the loss: combinations that would train something else are refused,
and what trains otherwise than in slime, or than one may think, is noted."""

from collections.abc import Container, Iterator

from agentrl.config.conditions import CONDITIONS
from agentrl.config.corrections import about_corrections, notes_on_corrections
from agentrl.config.run import RunConfig
from agentrl.visible import shown_url

__all__ = ["about_critic", "about_objective", "about_served_temperature", "notes_on_objective"]


def about_objective(config: RunConfig) -> Iterator[str]:
    """What contradicts itself in the flags of the loss, with the numbers."""
    if config.tis_clip_low > config.tis_clip:
        yield (
            f"--tis-clip-low {config.tis_clip_low:g} is above --tis-clip {config.tis_clip:g}; "
            "no weight lies between them"
        )
    yield from _about_mask(config)
    yield from about_corrections(config)
    if config.eps_clip > 1:
        yield (f"--eps-clip {config.eps_clip:g}: a ratio cannot fall below 0; use 1 or less")
    if config.kl_coef != 0 and config.use_kl_loss and config.kl_loss_coef != 0:
        yield (
            f"--kl-coef {config.kl_coef:g} and --kl-loss-coef {config.kl_loss_coef:g}: the KL is in"
            " the reward or in the loss; give one of the two"
        )
    yield from _about_overlong(config)
    yield from _about_teacher(config)
    if config.has_critic:
        yield from about_critic(config)
    if config.loss_type == "custom_loss" and config.custom_loss_function_path is None:
        yield (
            "--loss-type custom_loss and --custom-loss-function-path belong together; give both or "
            "neither"
        )
    if config.has_env:
        return
    if config.prompt_data is None and not config.env_mix:
        yield (
            "--loss-type sft_loss needs --prompt-data: a file whose rows hold a dialogue "
            f"under {config.input_key!r} (--input-key)"
        )
    if config.n_samples_per_prompt != 1:
        yield (
            f"--n-samples-per-prompt {config.n_samples_per_prompt} with --loss-type sft_loss: a "
            "demonstration is one dialogue; leave it at 1"
        )


def _about_mask(config: RunConfig) -> Iterator[str]:
    """Bounds of a mask hold 1, the ratio where engine and learner agree."""
    if config.tis_mode != "mask" or not CONDITIONS["tis"].holds(config):
        return
    wrong = []
    if config.tis_clip_low >= 1:
        wrong.append(f"lower --tis-clip-low {config.tis_clip_low:g} below 1")
    if config.tis_clip <= 1:
        wrong.append(f"raise --tis-clip {config.tis_clip:g} above 1")
    if wrong:
        yield (
            "--tis-mode mask keeps the tokens whose ratio lies between its bounds, and would drop "
            f"those on which engine and learner agree, whose ratio is 1: {' and '.join(wrong)}"
        )


def _about_teacher(config: RunConfig) -> Iterator[str]:
    """A teacher is a model of its own."""
    if not config.use_opd or config.mode != "policy":
        return
    if config.opd_type == "sglang":
        yield from _about_served_teacher(config)
    elif config.opd_type is None or config.opd_teacher_load is None:
        yield (
            "--use-opd needs a teacher: give --opd-type megatron and --opd-teacher-load, a Hugging "
            "Face model, a run, its checkpoints, or a checkpoint of Megatron's, of the policy's "
            "architecture; or --opd-type sglang and --rm-url, an SGLang server"
        )


def _about_served_teacher(config: RunConfig) -> Iterator[str]:
    if config.rm_url is None:
        yield (
            "--opd-type sglang needs --rm-url: the SGLang server whose model is the teacher, as in "
            "--rm-url http://127.0.0.1:13141"
        )
    elif not config.rm_url.startswith(("http://", "https://")):
        yield f"--rm-url {shown_url(config.rm_url)}: an address is wanted, as in http://127.0.0.1:13141"
    yield from about_served_temperature(config)


def about_served_temperature(config: RunConfig) -> Iterator[str]:
    """A served teacher answers at temperature 1, so turns must be sampled at 1 too: those of the
    run, or of a part of a mixture."""
    if config.has_served_teacher and config.scoring_temperature != 1:
        yield (
            f"--rollout-temperature {config.rollout_temperature:g} with --opd-type sglang: a served"
            " teacher tells its log-probabilities at temperature 1, and the policy's would be "
            "those of another; leave it at 1, or give --opd-type megatron"
        )


def about_critic(config: RunConfig) -> Iterator[str]:
    """What contradicts itself in a run that has a critic: it learns returns, and has an end before
    the run has."""
    alone, total = config.num_critic_only_steps, config.num_rollout
    if total is not None and alone > total:
        yield (
            f"--num-critic-only-steps {alone} is more than the --num-rollout {total} iterations of "
            "the run; lower it, so that the policy is trained in those that are left"
        )
    if config.custom_advantage_function_path is not None:
        yield (
            f"--custom-advantage-function-path {config.custom_advantage_function_path} with "
            f"--advantage-estimator {config.advantage_estimator}: it gives advantages and no "
            "returns, which a critic learns from; give one of the two"
        )


def _about_overlong(config: RunConfig) -> Iterator[str]:
    """The penalty for length has two lengths."""
    longest, buffer = config.overlong_max_length, config.overlong_buffer_length
    if buffer is None or config.mode != "policy":
        return
    if longest is None:
        yield (
            f"--overlong-buffer-length {buffer} without --overlong-max-length: name the sampled "
            "tokens of an episode at which the penalty is full; where an episode has one turn, "
            f"that is --rollout-max-response-len, {config.rollout_max_response_len}"
        )
    elif buffer > longest:
        yield (
            f"--overlong-buffer-length {buffer} is more than --overlong-max-length {longest}: an "
            f"episode without a token would be penalized; make it {longest} or less"
        )


def notes_on_objective(config: RunConfig, said: Container[str]) -> Iterator[str]:
    """Notes on clip and KL, of whose flags the user said those in `said`."""
    if config.mode != "policy":
        return
    yield from _on_clip(config, said)
    yield from notes_on_corrections(config)
    if config.has_critic and config.num_critic_only_steps == config.num_rollout:
        yield (
            f"--num-critic-only-steps {config.num_critic_only_steps} is the whole run "
            "(--num-rollout): the critic alone is trained, and the policy stays as it is"
        )
    yield from _on_overlong(config)
    if config.loss_type != "policy_loss" or not config.use_kl_loss:
        return
    if "kl_loss_type" not in said and not config.is_continued:
        yield (
            f"--kl-loss-type {config.kl_loss_type}, as none is given (slime's default is k1, whose "
            "gradient as a loss holds no reference)"
        )
    if config.kl_loss_type == "k1" and config.kl_loss_coef > 0:
        yield (
            f"warning: --kl-loss-type k1 with --kl-loss-coef {config.kl_loss_coef:g}: the gradient "
            "of log pi - log pi_ref holds no reference. On fresh samples it is 0 in the mean; on "
            "stale ones it makes less likely what was sampled; give --kl-loss-type low_var_kl"
        )


def _on_clip(config: RunConfig, said: Container[str]) -> Iterator[str]:
    """One step on a batch has ratios of 1, unless they are taken to the engine."""
    flags = ("eps_clip", "eps_clip_high", "eps_clip_c")
    given = [f"--{name.replace('_', '-')}" for name in flags if name in said]
    is_one_step = config.num_steps_per_rollout == 1 and CONDITIONS["prox_ratio"].holds(config)
    if given and is_one_step:
        yield (
            f"{', '.join(given)}: no effect at --num-steps-per-rollout 1: the policy that is "
            "trained is that of the start of the iteration, and every ratio is 1"
        )


def _on_overlong(config: RunConfig) -> Iterator[str]:
    """From where to where a reward falls."""
    longest, buffer = config.overlong_max_length, config.overlong_buffer_length
    if buffer is None or longest is None:
        return
    yield (
        f"the reward of an episode falls from {longest - buffer} sampled tokens on, by "
        f"{config.overlong_penalty_factor:g} at {longest} and more (--overlong-max-length, "
        "--overlong-buffer-length, --overlong-penalty-factor)"
    )
