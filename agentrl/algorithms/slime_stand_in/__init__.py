"""What losses of slime's users import from it, where slime is not installed.

    slime.backends.megatron_utils.loss        get_log_probs_and_entropy, get_responses
    slime.backends.megatron_utils.cp_utils    get_sum_of_sample_mean
    slime.utils.ppo_utils                     compute_policy_loss, compute_approx_kl

Written anew, over what agentrl computes by; `agentrl.slime_modules` makes them visible.
"""
