"""Losses as users of slime write them; a test puts one into a file of its own."""

__all__ = ["POLICY_LOSS"]

#: The loss of agentrl's default flags: clipped ratios to the start of the iteration, weighted by
#: what is left of the ratio to the engine.
POLICY_LOSS = '''\
import torch
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.utils.ppo_utils import compute_policy_loss


def policy_loss(args, batch, logits, sum_of_sample_mean):
    """PPO's loss, with truncated importance weights."""
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
    )
    log_probs, old = torch.cat(found["log_probs"]), torch.cat(batch["log_probs"])
    pg_loss, clipped = compute_policy_loss(
        old - log_probs, torch.cat(batch["advantages"]), args.eps_clip, args.eps_clip_high
    )
    weight = (old - torch.cat(batch["rollout_log_probs"])).exp().clamp(max=2.0)
    loss = sum_of_sample_mean(weight * pg_loss)
    entropy = sum_of_sample_mean(torch.cat(found["entropy"]))
    loss = loss - args.entropy_coef * entropy
    return loss, {"pg_clipfrac": sum_of_sample_mean(clipped), "entropy_loss": entropy.detach()}
'''
