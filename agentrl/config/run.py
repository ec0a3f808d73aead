"""`RunConfig`: a whole run, flat: agentrl's own flags and those that are passed through.

A field `rollout_batch_size` is the flag `--rollout-batch-size` and the key `rollout_batch_size` of
a config file. Its default, bounds, help and facts stand at the field, in the file of its subject
(`flags/`). Flags that slime has keep slime's spelling and default. The other three families are
names of their projects (see `passthrough.py`).

Only fields that something reads belong here; a test walks the list.
"""

from pathlib import Path
from typing import Annotated, Any

from agentrl.config.engine_groups import (
    EngineGroup,
    PlannedEngine,
    alike,
    attention_ranks,
    engines_of,
    groups_of_file,
    prefill_and_decode,
)
from agentrl.config.facts import ACTS, BOTH, ENGINES, FREE, LEARNER, Half, Mode, flag, mode_of
from agentrl.config.flags.asynchrony import StalenessPolicy
from agentrl.config.flags.logging import LoggingFlags
from agentrl.numbered import RANK, ROLLOUT_ID, literal
from agentrl.shipped import ALGORITHMS

__all__ = ["RunConfig", "StalenessPolicy"]


#: They give the rows of --prompt-data, as a run without them does.
_SLIMES_SOURCES = (
    "slime.rollout.data_source.RolloutDataSource",
    "slime.rollout.data_source.RolloutDataSourceWithBuffer",
)


class RunConfig(LoggingFlags, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A resolved run. Built by `agentrl.config.resolve`, written to `runs/ID/config.toml`."""

    megatron: Annotated[
        dict[str, Any],
        flag(
            "Megatron-core settings by Megatron's flag names",
            group="megatron",
            on_resume=FREE,
            halves=LEARNER,
        ),
    ] = {}
    sglang: Annotated[
        dict[str, Any],
        flag(
            "SGLang ServerArgs fields", group="sglang", on_resume=FREE, modes=ACTS, halves=ENGINES
        ),
    ] = {}
    router: Annotated[
        dict[str, Any],
        flag("sglang-router arguments", group="router", on_resume=FREE, modes=ACTS, halves=ENGINES),
    ] = {}

    @property
    def mode(self) -> Mode:
        """What the run does: which flags it reads follows from it."""
        return mode_of({"eval_only": self.eval_only, "loss_type": self.loss_type})

    @property
    def has_reference(self) -> bool:
        """Whether something is compared with a reference model, which is loaded for it."""
        return self.use_kl_loss or self.kl_coef != 0

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained beside the policy."""
        return self.mode == "policy" and ALGORITHMS.says(self.advantage_estimator, "has_critic")

    @property
    def models_beside(self) -> frozenset[str]:
        """The models that the learner holds beside the policy, as far as flags tell: an estimator
        of the user's says it itself (`Needs.models`)."""
        told = {
            "reference": self.has_reference,
            "teacher": self.use_opd and not self.has_served_teacher,
            "critic": self.has_critic,
        }
        return frozenset(name for name, is_there in told.items() if is_there)

    @property
    def has_served_teacher(self) -> bool:
        """Whether a server tells what a teacher thinks of sampled tokens, and workers ask it."""
        return self.use_opd and self.opd_type == "sglang"

    @property
    def pins_evaluations(self) -> bool:
        """Whether evaluations beside training hold pushes back. Under --colocate engines have no
        memory while the learner trains, so an evaluation ends before that; where prefill is apart
        no turn may meet a push."""
        return self.colocate or self.eval_mode == "pinned" or self.has_prefill_apart

    @property
    def evaluates_apart(self) -> bool:
        """Whether evaluations are played on engines of their own."""
        return self.mode == "policy" and self.eval_mode == "apart"

    @property
    def keeps_cache(self) -> bool:
        """Whether a push leaves engines the cache of turns in flight."""
        return self.kv_across_pushes == "keep"

    @property
    def replays_engine_routes(self) -> bool:
        """Whether engines tell the experts of each token, and the learner sends it to them."""
        return not (self.is_supervised or self.eval_only) and self.use_rollout_routing_replay

    @property
    def pushes_draft(self) -> bool:
        """Whether engines draft with layers of multi-token prediction that the learner trains."""
        algorithm = str(self.sglang.get("speculative_algorithm") or "").upper()
        if algorithm not in ("EAGLE", "NEXTN") or not self.enable_mtp_training:
            return False
        own = str(self.hf_checkpoint)
        draft = str(self.sglang.get("speculative_draft_model_path") or own)
        return Path(draft).absolute() == Path(own).absolute()

    @property
    def staleness_bound(self) -> int:
        """S, with its default B + I - 1 filled in."""
        if self.max_staleness is not None:
            return self.max_staleness
        return self.async_buffer_size + self.update_weights_interval - 1

    @property
    def num_ahead(self) -> int:
        """A = min(B, S): iterations that generation may really run ahead."""
        return min(self.async_buffer_size, self.staleness_bound)

    @property
    def num_charged(self) -> int:
        """Groups that may be charged at once: (A + I) x N, or Q where more are in the making and
        the surplus is given up."""
        limit = (self.num_ahead + self.update_weights_interval) * self.rollout_batch_size
        return max(limit, self.over_sampling_batch_size or 0) if self.gives_up_surplus else limit

    @property
    def gives_up_surplus(self) -> bool:
        """S = 0: a group that is left over when an iteration is full could never be trained."""
        return self.staleness_bound == 0

    @property
    def masks_off_policy_turns(self) -> bool:
        """Whether only the newest version's tokens of a turn are trained. Without partial rollout
        the one turn of several versions is that which was given up too often."""
        return self.mask_offpolicy_in_partial_rollout or not self.partial_rollout

    @property
    def is_continued(self) -> bool:
        """Whether the run goes on with what an earlier program left in the directory `resume`. An
        `auto` that found no run is a new one."""
        return self.resume not in ("never", "auto")

    @property
    def is_supervised(self) -> bool:
        """Whether the run imitates demonstrations. What follows from it has names of its own."""
        return self.loss_type == "sft_loss"

    @property
    def has_env(self) -> bool:
        """Whether tasks are an Env's, which rewards what a model does; else they are dialogues that
        are imitated (`dialogue_key`)."""
        return not self.is_supervised

    @property
    def has_engines(self) -> bool:
        """Whether something samples, and gets the weights of a learner that trains."""
        return self.has_env and not self.loads_rollouts

    @property
    def dialogue_key(self) -> str | None:
        """Where a row holds the dialogue that is imitated; None where episodes are played."""
        return None if self.has_env else self.input_key

    @property
    def scoring_temperature(self) -> float:
        """What the learner divides logits by: the temperature at which the engine reports
        log-probabilities of what it sampled."""
        return 1.0 if self.is_supervised else self.rollout_temperature or 1.0

    @property
    def has_data_source(self) -> bool:
        """Whether a class of the user's gives the training tasks; slime's own give rows."""
        return self.data_source_path not in (None, *_SLIMES_SOURCES)

    @property
    def names_eval_sets(self) -> bool:
        """Whether evaluation sets are named, and are not those that the Env brings."""
        return bool(self.eval_prompt_data) or self.eval_config is not None

    @property
    def evaluation_temperature(self) -> float:
        """Of the turns of evaluations; not given, that of training."""
        return self.rollout_temperature if self.eval_temperature is None else self.eval_temperature

    @property
    def engine_context(self) -> int | None:
        """Tokens of the longest context that engines are to hold; None: the model's own."""
        training, evaluation = self.rollout_max_context_len, self.eval_max_context_len
        if self.mode == "eval":
            return evaluation or training
        return None if training is None else max(training, evaluation or 0)

    @property
    def engine_groups(self) -> list[EngineGroup]:
        """The groups of alike engines, and of devices that stay empty between them."""
        if not self.has_engines:
            return []
        size = self.rollout_num_gpus_per_engine
        if self.rollout_external_engine_addrs:
            return alike(len(self.rollout_external_engine_addrs), size)
        if self.sglang_config:
            return groups_of_file(self.sglang_config, size)
        of_learner = self.num_learner_ranks if self.colocate else 0
        num_engines = max(1, (self.rollout_num_gpus or of_learner or size) // size)
        if self.prefill_num_servers is not None:
            return prefill_and_decode(num_engines, self.prefill_num_servers, size)
        return alike(num_engines, size)

    @property
    def engines(self) -> list[PlannedEngine]:
        """The engines of the run, in order."""
        return engines_of(self.engine_groups)

    @property
    def eval_engines(self) -> list[PlannedEngine]:
        """The engines of evaluations that are apart."""
        count = self.eval_num_engines if self.evaluates_apart else 0
        size = self.rollout_num_gpus_per_engine
        return [PlannedEngine(f"eval-engine-{i}", "evaluation", size) for i in range(count)]

    @property
    def num_engines(self) -> int:
        """Engines of the run."""
        return sum(group.num_engines for group in self.engine_groups)

    @property
    def num_engine_devices(self) -> int:
        """Devices of the engines that the run starts, and of those that stay empty."""
        apart = sum(engine.size for engine in self.eval_engines)
        if self.rollout_external_engine_addrs:
            return apart
        return apart + sum(group.num_gpus for group in self.engine_groups)

    @property
    def has_prefill_apart(self) -> bool:
        """Whether some engines read prompts and others sample what follows."""
        return any(group.kind in ("prefill", "decode") for group in self.engine_groups)

    @property
    def num_permits(self) -> int:
        """Turns that may be in flight: of each group of ranks that attends to its own, on engines
        that sample; those that prefill do not count."""
        sampling = [group for group in self.engine_groups if group.kind != "prefill"]
        ranks = sum(group.num_engines * self.attention_ranks(group) for group in sampling)
        return ranks * self.sglang_server_concurrency

    def attention_ranks(self, group: EngineGroup) -> int:
        """Groups of an engine's devices, with the group's own settings (`engine_groups`)."""
        return attention_ranks({**self.sglang, **group.overrides})

    @property
    def num_eval_permits(self) -> int | None:
        """Turns that engines of evaluations take at once; None where there are none."""
        ranks = len(self.eval_engines) * attention_ranks(self.sglang)
        return ranks * self.sglang_server_concurrency or None

    @property
    def engine_names(self) -> list[str]:
        """The engines of the run."""
        return [engine.name for engine in self.engines]

    @property
    def started_engines(self) -> list[str]:
        """Those that the run starts: none where somebody else has started them."""
        return [] if self.rollout_external_engine_addrs else self.engine_names

    @property
    def starts_router(self) -> bool:
        """Whether the run has engines, and a router of its own before them."""
        return self.num_engines > 0 and self.sglang_router_ip is None

    @property
    def loads_rollouts(self) -> bool:
        """Whether the learner trains on files, and nothing is played."""
        return not self.eval_only and self.load_debug_rollout_data is not None

    @property
    def plays_only(self) -> bool:
        """Whether episodes are played and nothing is trained on them."""
        return self.mode == "policy" and self.debug_rollout_only

    @property
    def computes_exactly(self) -> bool:
        """Whether the engines and the learner of a policy compute the same bits. A run of one half
        does too: what engines record in this mode, a learner may load in it."""
        return self.mode == "policy" and self.true_on_policy_mode

    @property
    def halves(self) -> frozenset[Half]:
        """The halves that the run has."""
        return BOTH - (LEARNER if self.plays_only else ENGINES if self.loads_rollouts else set())

    @property
    def saved_rollouts(self) -> tuple[str, ...]:
        """Where the groups of an iteration are saved: paths with `{rollout_id}`."""
        dump = self.dump_details
        details = None if dump is None else f"{literal(dump)}/rollout_data/{ROLLOUT_ID}.rollouts"
        return tuple(path for path in (self.save_debug_rollout_data, details) if path is not None)

    @property
    def saved_train_data(self) -> tuple[str, ...]:
        """Where a rank saves what it trains on: paths with `{rollout_id}` and `{rank}`."""
        dump = None if self.plays_only else self.dump_details
        details = None if dump is None else f"{literal(dump)}/train_data/{ROLLOUT_ID}_{RANK}.npz"
        return tuple(path for path in (self.save_debug_train_data, details) if path is not None)

    @property
    def worker_names(self) -> list[str]:
        """The agent workers of the run."""
        num_workers = 0 if self.loads_rollouts else self.num_agent_workers
        return [f"worker-{index}" for index in range(num_workers)]

    @property
    def learner_names(self) -> list[str]:
        """The ranks of the learner; of a run that trains nothing, what asks for leases in its
        place."""
        num_ranks = 1 if self.plays_only else self.num_learner_ranks
        return [f"learner-{rank}" for rank in range(num_ranks)]

    @property
    def num_learner_ranks(self) -> int:
        """Ranks of the learner over all nodes."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

    @property
    def context_parallel_size(self) -> int:
        """Learner ranks that share each sequence (`--context-parallel-size`)."""
        return int(self.megatron.get("context_parallel_size", 1))

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of a packed micro-batch over all ranks that share it."""
        return self.max_tokens_per_gpu * self.context_parallel_size
