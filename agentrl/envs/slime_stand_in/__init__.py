"""What functions of slime's users import from it, where slime is not installed.

    slime.utils.types               Sample
    slime.utils.http_utils          post, get
    slime.utils.misc                load_function
    slime.utils.eval_config         EvalDatasetConfig
    slime.rollout.sglang_rollout    GenerateState
    slime.rollout.rm_hub            async_rm, batched_async_rm
    slime.rollout.rm_hub.math_dapo_utils    compute_score
    slime.rollout.data_source       DataSource and its subclasses
    slime.rollout.filter_hub.base_types    DynamicFilterOutput
    slime.observability.logging_utils      log
    slime.observability.metric_utils       compute_statistics and others

Written anew from what such functions read and write: no more of slime is here. The loader of hooks
makes them visible in this process (`agentrl.slime_modules`), behind everything that is installed: a
slime that is there is what its functions get. What losses import is in
`agentrl/algorithms/slime_stand_in`.
"""
