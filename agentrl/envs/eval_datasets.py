"""`args.eval_datasets`: the named evaluation sets, for a function that plays them itself."""

from agentrl.config.eval_sets import EvalSet, named_sets
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns
from agentrl.envs.slime_stand_in.eval_config import EvalDatasetConfig

__all__ = ["eval_datasets"]


def eval_datasets(flags: RunConfig) -> list[EvalDatasetConfig]:
    """Those of `--eval-config` or `--eval-prompt-data`, in their order. Raises ConfigError."""
    return [_dataset(one) for one in named_sets(flags).values()]


def _dataset(one: EvalSet) -> EvalDatasetConfig:
    flags, sampling = one.config, evaluation_turns(one.config)
    metadata = dict(one.metadata)
    kind = metadata.pop("rm_type", None) or flags.env_args.get("rm_type")
    return EvalDatasetConfig(
        name=one.name,
        path=one.path,
        rm_type=kind,
        custom_rm_path=flags.custom_rm_path,
        input_key=flags.eval_input_key or flags.input_key,
        label_key=flags.eval_label_key or flags.label_key or "label",
        tool_key=flags.eval_tool_key or flags.tool_key,
        metadata_key=flags.metadata_key,
        n_samples_per_eval_prompt=flags.n_samples_per_eval_prompt,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_response_len=sampling.max_new_tokens,
        stop=list(sampling.stop) or None,
        stop_token_ids=list(sampling.stop_token_ids) or None,
        apply_chat_template=flags.apply_chat_template,
        custom_generate_function_path=flags.custom_generate_function_path,
        metadata_overrides=metadata,
    )
