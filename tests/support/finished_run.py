"""Runs that reached their last step, made of real files by the code that real runs use, small enough to break."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.rows import SampledCompletion, ScoredCompletion
from explicit_learning.accounting.set_aside import ROWS_BEYOND
from explicit_learning.accounting.trace import Trace
from explicit_learning.completion.launches import record_start
from explicit_learning.completion.lifecycle import Preparation, prepare_run
from explicit_learning.data.equality import AnswerType
from explicit_learning.data.rows import ImageRef, Relation, SlotRow, View, slot_to_json
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.plan.probes import planned_probes
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.checkpoint_mark import seal_checkpoint, write_rank_frontiers
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.launch_manifest import LaunchManifest
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.rank_report import (
    AgreementProbe,
    LossTerm,
    RankReport,
    RolloutReport,
    SamplerAgreement,
    TrainableParameter,
)
from tests.support.checkpoint_documents import TRAINED, write_adapter, write_checkpoint_files
from tests.support.honest_log import honest_log
from tests.support.machines import COMMIT, MACHINE
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from explicit_learning.rundir.launches import Machine

    Pairs = list[tuple[SampledCompletion, ScoredCompletion]]

STEPS, BATCH, RANKS, GENERATIONS = 3, 4, 2, 2
PASSES = STEPS * RANKS  # backward passes over all ranks


def _slot(slot_id: str) -> SlotRow:
    image = ImageRef(image_index=0, path=f"{slot_id}.png", sha256="0" * 64, width=64, height=64)
    view = View(view_id="full", role=Relation.FULL, state="made", images=(image,))
    return SlotRow(
        slot_id=slot_id,
        group_id=f"g-{slot_id}",
        base_id=f"b-{slot_id}",
        split="train",
        question="Which digit?",
        choices=(),
        answer_type=AnswerType.NUMBER,
        relation=Relation.FULL,
        full_view=view,
        selected_view=view,
        full_answer="7",
    )


# Every rank has the same slots in each step: so the schedule orders all visits of them under this seed.
DATA_SEED = 140
SLOTS = [_slot(f"s{slot}.r{rank}") for rank in range(RANKS) for slot in range(BATCH // GENERATIONS)]


def plan_document(**changes: Any) -> dict[str, Any]:
    """Return a frozen plan: three steps, two ranks, two groups of two completions each; ``__`` leads into groups."""
    size = {
        "data_seed": DATA_SEED,
        "optimisation__max_steps": STEPS,
        "optimisation__per_device_batch_size": BATCH,
        "optimisation__save_interval": 1,
        "generation__num_generations": GENERATIONS,
        "hardware__world_size": RANKS,
        "budget__max_completion_tokens_per_run": 300,
        "data__slot_manifest_sha256": slot_manifest_sha256(SLOTS),
    }
    return plan_with({f"/{name.replace('__', '/')}": value for name, value in (size | changes).items()})


def sft_document(**changes: Any) -> dict[str, Any]:
    """Return a frozen SFT plan of the same size."""
    return plan_document(
        **{
            "arm": "sft_certificate",
            "reward": None,
            "objective": None,
            "vllm": None,
            "initial_adapter": None,
            "data__slot_manifest_sha256": None,
            "generation__num_generations": 1,
            "budget__max_completion_tokens_per_run": None,
            "budget__max_sft_loss_tokens": 500,
            "budget__planned_sft_loss_tokens": 480,
        }
        | changes
    )


def row(entry: SampledCompletion, step: int, **changes: Any) -> ScoredCompletion:
    """Return the trace row of a completion: even generations are right, odd ones wrong."""
    right = entry.generation % 2 == 0
    values: dict[str, Any] = {
        **dataclasses.asdict(entry),
        "group_id": f"g-{entry.slot_id}",
        "base_id": f"b-{entry.slot_id}",
        "view_id": "full",
        "relation": "FULL",
        "answer_type": "number",
        "choices": (),
        "gold": "7",
        "optimizer_step": step,
        "completion_text": f"<answer>{7 if right else 8}</answer>",
        "completion_token_ids": (*tuple(range(3, 2 + entry.token_count)), 2),
        "terminated": True,
        "valid": True,
        "reason": None,
        "parsed_answer": "7" if right else "8",
        "normalised_prediction": "7" if right else "8",
        "normalised_gold": "7",
        "normaliser_branch": "number",
        "components": {"answer": float(right), "format": 0.0, "malformed": 0.0},
        "total": float(right),
    }
    return ScoredCompletion(**(values | changes))


def sampled(rank: int, step: int) -> Pairs:
    """Return what a rank samples in a step: two slots, two generations each."""
    entries = [
        SampledCompletion(slot_id=f"s{slot}.r{rank}", visit=step, generation=generation, token_count=5 + generation)
        for slot in range(BATCH // GENERATIONS)
        for generation in range(GENERATIONS)
    ]
    return [(entry, row(entry, step)) for entry in entries]


@dataclass
class Run:
    """A run directory and what belongs to it."""

    folder: Path
    plan: Plan
    plan_bytes: bytes
    preparation: Preparation | None = None
    launches: int = 0
    machine: Machine = MACHINE

    @classmethod
    def of(cls, folder: Path, document: dict[str, Any]) -> Run:
        return cls(folder=folder, plan=from_json(Plan, document), plan_bytes=canonical_bytes(document))

    @property
    def is_sft(self) -> bool:
        return self.plan.reward is None

    def prepare(self, *, accept_changes: bool = False, record: bool = True) -> Preparation:
        """Prepare a launch, and record it as the launcher does before its ranks start."""
        self.launches += 1
        self.preparation = prepare_run(
            self.folder,
            plan=self.plan,
            plan_bytes=self.plan_bytes,
            machine=self.machine,
            launch_id=f"launch-{self.launches}",
            accept_changes=accept_changes,
        )
        if record and self.preparation.action != "finalise":
            record_start(self.launch_manifest())
        return self.preparation

    def sample(
        self,
        steps: Sequence[int] = range(STEPS),
        *,
        frontiers: Sequence[RankFrontiers] = (),
        change: Callable[
            [int, list[tuple[SampledCompletion, ScoredCompletion]]], list[tuple[SampledCompletion, ScoredCompletion]]
        ]
        | None = None,
    ) -> list[RankFrontiers]:
        """Let every rank sample its steps from its frontier; return where they stand then."""
        ends = []
        for rank in range(self.plan.hardware.world_size):
            binding = Binding.of(self.plan, rank)
            at = frontiers[rank] if frontiers else None
            with (
                Ledger.open(self.folder, binding, at.ledger if at else None) as ledger,
                Trace.open(
                    self.folder, binding, at.trace if at else None, arm=self.plan.arm, running_commit=COMMIT
                ) as trace,
            ):
                for aside in filter(None, (ledger.set_aside, trace.set_aside)):
                    append_event(self.folder, "set-aside", {"what": ROWS_BEYOND, **to_json(aside)})
                for step in steps:
                    pairs = sampled(rank, step)
                    pairs = change(rank, pairs) if change else pairs
                    ledger.append(entry for entry, _ in pairs)
                    trace.append(scored for _, scored in pairs)
                ends.append(RankFrontiers(rank=rank, ledger=ledger.frontier(), trace=trace.frontier()))
        return ends

    def checkpoint(self, step: int, frontiers: Sequence[RankFrontiers] = (), *, seal: bool = True) -> Path:
        """Write a checkpoint with every file that a real one has."""
        folder = self.folder / f"checkpoint-{step}"
        folder.mkdir()
        write_checkpoint_files(folder, self.plan, step, self.reports("0" * 64)[: self.plan.hardware.world_size])
        for rank_frontiers in frontiers:
            write_rank_frontiers(folder, rank_frontiers)
        if seal:
            self.seal(folder, step)
        return folder

    def seal(self, folder: Path, step: int) -> None:
        """Seal a checkpoint, whatever it holds."""
        assert self.preparation is not None
        seal_checkpoint(folder, self.plan, step=step, run_manifest_sha256=self.preparation.run_manifest_sha256)

    def save_adapter(self, value: float = TRAINED) -> str:
        """Write the final adapter and return its tensor digest."""
        folder = self.folder / "final-adapter"
        folder.mkdir()
        return write_adapter(folder, self.plan, value)

    def reports(self, tensors: str, **changes: Any) -> list[RankReport]:
        """Return what honest ranks would report."""
        completions = STEPS * BATCH * RANKS
        steps = self.plan.optimisation.max_steps
        rows = steps * BATCH * RANKS
        tokens = changes.get("sampled_tokens", completions // 2 * 11)
        total_difference = tokens * 1e-7
        agreement = SamplerAgreement(tokens=tokens, mean=total_difference / tokens, largest=1e-6)
        acted = LossTerm(called=steps * RANKS, finite=True, gradient=True)
        values: dict[str, Any] = {
            "world_size": RANKS,
            "optimizer_steps": STEPS,
            "records": rows if self.is_sft else rows // GENERATIONS,
            "records_left_out": 7 if self.is_sft else None,
            "sft_loss_tokens": 480 if self.is_sft else None,
            "sampled_tokens": None if self.is_sft else tokens,
            "completions": None if self.is_sft else completions,
            "forwards": steps if self.is_sft else 20,
            "sampling_forwards": None if self.is_sft else steps * max(5 + each for each in range(GENERATIONS)),
            "scored_tokens": 240,
            "trainable_parameters": {"lora_A": TrainableParameter(shape=(2, 3), dtype="float32")},
            "initial_adapter_tensors_sha256": "2" * 64,
            "final_adapter_tensors_sha256": tensors,
            "base_weights_before_sha256": "3" * 64,
            "base_weights_after_sha256": "3" * 64,
            "peak_memory_bytes": 1000,
            "peak_reserved_bytes": None,
            "device_seconds": 1.5,
            "gpu": None,
            "unchanged_adapter_steps": (),
            "zero_gradient_steps": (2,),
            "sampler_agreement": None if self.is_sft else agreement,
            "rollouts": None if self.is_sft else self._rollouts(),
            "kernel_checks": None,
            "layer_functions": {"chunk_gated_delta_rule": "model.torch_chunk_gated_delta_rule"},
            "loss_terms": {"cross_entropy" if self.is_sft else "policy": acted},
        }
        values |= changes
        if "log_history" not in values:
            zero, rollouts = values["zero_gradient_steps"], values["rollouts"]
            probes = () if rollouts is None else rollouts.probes
            log = honest_log(self.plan, self.folder, probes=probes, zero_gradient_steps=zero)
            values["log_history"] = log
        return [RankReport(rank=rank, **values) for rank in range(RANKS)]

    def _rollouts(self) -> RolloutReport:
        """Return what sampled, with the plan's probes."""
        agreement = SamplerAgreement(tokens=20, mean=1e-6, largest=1e-5)
        probes = tuple(
            AgreementProbe(
                step=step,
                reason=reason,
                tokens=40,
                mean=1e-6,
                largest=1e-5,
                fixed=agreement,
                fresh=agreement,
                previous_mean=0.001 if step else None,
                effect=0.001 if step else None,
                nearer="current" if step else None,
                tolerance=0.02 if step else 0.1,
            )
            for step, reason in planned_probes(self.plan)
        )
        return RolloutReport(
            engine="exact",
            engine_base_before_sha256=None,
            engine_base_after_sha256=None,
            probes=probes,
            resume_probe=None,
        )

    def launch_manifest(self) -> LaunchManifest:
        assert self.preparation is not None
        dataset = self.folder.with_name("slots.jsonl")
        dataset.write_bytes(b"".join(canonical_bytes(slot_to_json(slot)) + b"\n" for slot in SLOTS))
        return LaunchManifest(
            plan=self.plan,
            run_folder=str(self.folder),
            paths=ResolvedPaths(
                model="m", initial_adapter=None, dataset=str(dataset), asset_root="a", evaluation="e", prompt="p"
            ),
            run_manifest_sha256=self.preparation.run_manifest_sha256,
            running_commit=COMMIT,
            launch_id=self.preparation.launch_id,
            resume_checkpoint=self.preparation.checkpoint,
            report_to=(),
            stop_at_step=None,
            machine=self.machine,
            accept_changes=self.preparation.accept_changes,
        )

    def completed(self, reports: Sequence[RankReport]) -> list[RankOutcome]:
        """Return the outcomes of ranks that completed the run, whose log is written."""
        metrics = self.folder / "metrics.jsonl"
        if reports and not metrics.exists():
            write_rows(metrics, reports[0].log_history)
        last = f"checkpoint-{STEPS}"
        return [
            RankOutcome(status="completed", optimizer_step=STEPS, checkpoint=last, report=report) for report in reports
        ]
