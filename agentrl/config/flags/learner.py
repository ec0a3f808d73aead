"""The model: where its weights come from, where they go, and how many rows a step takes."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import FREE, LEARNER, POLICY, STATE, TRAINS, Count, flag, noted
from agentrl.config.flags.asynchrony import AsynchronyFlags

__all__ = ["LearnerFlags"]

_flag = partial(flag, group="learner", on_resume=FREE)
_trained = partial(_flag, modes=TRAINS, halves=LEARNER)


class LearnerFlags(AsynchronyFlags, frozen=True, kw_only=True):
    hf_checkpoint: Annotated[
        str | None,
        _flag(
            "Model in Hugging Face's format (architecture, weights, tokenizer): a folder, or the "
            "name of one that `hf download NAME` has fetched",
            on_resume=STATE,
            holds="model",
            starts=True,
        ),
    ] = None
    model_family: Annotated[
        str | None,
        _flag(
            "Model family that reads --hf-checkpoint: an architecture, or a Family of "
            "agentrl.models as pkg.module:NAME or path/to/file.py[:NAME] (default: the family of "
            "its architecture)",
            on_resume=STATE,
            holds="code",
        ),
    ] = None
    true_on_policy_mode: Annotated[
        bool,
        _flag(
            "Have learner and engines compute the same bits, so that pi_prox / mu of fresh tokens "
            "is exactly 1; a run in which it is not ends. In float32 on the CPU, for two to three "
            "times the work",
            modes=POLICY,
        ),
    ] = False
    flash_attention: Annotated[
        Literal["2", "3", "4"],
        _trained(
            "FlashAttention of the learner on GPUs: 2 is torch's own; 3 (on Hopper) and 4 (from "
            "Hopper on) are packages that you install on its nodes"
        ),
    ] = "2"
    save: Annotated[
        str | None,
        _trained(
            "Folder of the checkpoints, all of which are kept (default: runs/ID/recovery, with the "
            "two newest)",
            on_resume=STATE,
            holds="folder",
        ),
    ] = None
    save_interval: Annotated[
        int, _trained("Iterations between checkpoints", ge=1, reaches_weights=False)
    ] = 10
    async_save: Annotated[
        bool,
        _trained(
            "Write checkpoints while training goes on, from a copy in the memory of the host",
            reaches_weights=False,
        ),
    ] = False
    save_retain_interval: Annotated[
        Count | None,
        _trained(
            "Keep the checkpoints of every so many iterations, and the two newest, no others",
            reaches_weights=False,
        ),
    ] = None
    load: Annotated[
        str | None,
        _flag(
            "What to begin with: a run or a folder of checkpoints, whose newest gives weights and "
            "optimizer, one checkpoint, or a Hugging Face model; with --save of the same folder "
            "the run that saved there goes on",
            on_resume=STATE,
            halves=LEARNER,
            holds="folder",
            weights="policy",
        ),
    ] = None
    ref_load: Annotated[
        str | None,
        _trained(
            "The reference model of the KL, and the first weights where --load has none: a Hugging "
            "Face model, a run, its checkpoints or one of them (default: --hf-checkpoint)",
            on_resume=STATE,
            holds="folder",
            weights="reference",
        ),
    ] = None
    opd_type: Annotated[
        Literal["megatron", "sglang"] | None,
        _trained(
            "Where the teacher's log-probabilities come from: a model in the learner's ranks, of "
            "--opd-teacher-load (megatron), or the server of --rm-url (sglang)",
            modes=POLICY,
            needs="opd",
        ),
    ] = None
    opd_teacher_load: Annotated[
        str | None,
        _trained(
            "The teacher of --use-opd, of the policy's architecture: a Hugging Face model, a run, "
            "its checkpoints or one of them, or a checkpoint of Megatron's",
            modes=POLICY,
            needs="own_teacher",
            on_resume=noted("the policy is distilled from another teacher from now on"),
            holds="folder",
            weights="teacher",
        ),
    ] = None
    critic_load: Annotated[
        str | None,
        _trained(
            "What the critic begins with, of the policy's architecture: a Hugging Face model, a "
            "run, its checkpoints or one of them (its critic, else its policy), or a checkpoint of "
            "Megatron's (default: as --load)",
            modes=POLICY,
            needs="critic",
            on_resume=STATE,
            holds="folder",
            weights="critic",
        ),
    ] = None
    ref_update_interval: Annotated[
        Count | None,
        _trained(
            "Iterations after which the reference takes over the weights of the policy, again and "
            "again (default: it stays --ref-load)",
            modes=POLICY,
            on_resume=STATE,
            needs="reference",
        ),
    ] = None
    only_train_params_name_list: Annotated[
        list[str],
        _trained(
            "Regular expressions, each looked for in the names of parameters: what has one of them "
            "in its name is trained, all else is frozen (default: all is trained; docs/models.md "
            "has the names)",
            on_resume=STATE,
        ),
    ] = []
    freeze_params_name_list: Annotated[
        list[str],
        _trained(
            "Regular expressions, each looked for in the names of parameters: what has one of them "
            "in its name is frozen, all else is trained (default: nothing is frozen)",
            on_resume=STATE,
        ),
    ] = []
    save_hf: Annotated[
        str | None,
        _trained(
            "Where the final weights go in Hugging Face format (default: runs/ID/hf); with "
            "{rollout_id} in it, the iterations trained, a model goes there with every checkpoint "
            "({rollout_id:05d}: with zeros)",
            holds="folder",
            reaches_weights=False,
        ),
    ] = None
    use_rollout_routing_replay: Annotated[
        bool,
        _trained(
            "Send tokens to the experts that the engine chose for them (R3); a token whose experts "
            "are not known is routed freely",
            modes=POLICY,
            halves=frozenset(),
        ),
    ] = False
    enable_mtp_training: Annotated[
        bool,
        _trained(
            "Train the model's layers of multi-token prediction beside the policy, by the cross "
            "entropy of the token after the next one times --mtp-loss-scaling-factor",
            on_resume=STATE,
        ),
    ] = False
    num_steps_per_rollout: Annotated[int, _trained("M: optimizer steps in an iteration", ge=1)] = 1
    max_tokens_per_gpu: Annotated[
        int,
        _trained(
            "Tokens of a packed micro-batch for each rank that shares it (context parallelism); a "
            "longer trajectory is a micro-batch of its own",
            ge=1,
        ),
    ] = 8192
