"""Lengths in tokens: what a user should know of episodes that are longer than a micro-batch."""

from agentrl.config.model import ModelSummary
from agentrl.config.plan import in_units
from agentrl.config.run import RunConfig

__all__ = ["notes_on_lengths"]


def notes_on_lengths(config: RunConfig, model: ModelSummary) -> list[str]:
    """Lines for the user: nothing here keeps a run from starting."""
    limits = {
        "--rollout-max-context-len": config.rollout_max_context_len,
        "the model's max_position_embeddings": model.max_context,
    }
    known = [(length, name) for name, length in limits.items() if length is not None]
    if not known:
        return []
    longest, name = min(known)
    if longest <= config.micro_batch_tokens:
        return []
    ranks = config.context_parallel_size
    by = f" x --context-parallel-size {ranks} = {config.micro_batch_tokens}" if ranks > 1 else ""
    note = (
        f"an episode of up to {longest} tokens ({name}) may be longer than a micro-batch "
        f"(--max-tokens-per-gpu {config.max_tokens_per_gpu}{by} tokens): it is then one of its own"
        f"{_memory(config, model, longest)}. Lower --rollout-max-context-len if a rank has no room "
        "for that"
    )
    return [note]


def _memory(config: RunConfig, model: ModelSummary, tokens: int) -> str:
    """What the logits of a sequence and their gradient take, both in 16 bits."""
    if model.vocab_size is None:
        return ""
    shares = config.context_parallel_size * config.megatron.get("tensor_model_parallel_size", 1)
    needed = 2 * 2 * tokens * model.vocab_size // shares
    return (
        f"; beside its activations, logits and their gradient take up to {in_units(needed)} on a "
        "rank in 16 bits, twice that in 32"
    )
