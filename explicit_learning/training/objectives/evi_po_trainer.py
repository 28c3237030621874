"""GRPO with EVI-PO's terms: every view of a slot's group, scored on the group's candidates.

A group counts once per slot visit, whatever the number of its completions. A rank's backward passes share the groups of
its generation cycle evenly. Their sum does not depend on which pass adds what.

A backward pass keeps the activations of one forward of candidates at most, whatever its number of groups: the others
are computed again when their turn in the backward comes. Candidate forwards need no other rank, so a rank makes as many
as its own groups have rows for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.data.evidence import evidence_sources, view_shares
from explicit_learning.training.forwards import checkpointed
from explicit_learning.training.grpo import AlignedGRPOTrainer
from explicit_learning.training.objectives.candidates import tokenise_candidates, turn_end
from explicit_learning.training.objectives.evi_po import (
    GroupScores,
    cross_entropy,
    direction,
    evidence,
    group_scale,
)
from explicit_learning.training.objectives.loss_term_check import check_term
from explicit_learning.training.objectives.scoring import ScoreRow, chunks, image_features, plain, score_rows, shares

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from explicit_learning.arms import Arm
    from explicit_learning.data.image_grid import ResizeRules
    from explicit_learning.data.rows import View
    from explicit_learning.plan.typed_plan import EviPo
    from explicit_learning.training.objectives.evi_po import Direction
    from explicit_learning.training.objectives.groups import Group
    from explicit_learning.training.rollouts.encoded_views import EncodedView, ViewEncoder

__all__ = ["EviPoTrainer", "Evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence that an arm uses for each group: the group's own, or another group's.

    Attributes:
        sources: The FULL view whose evidence each group is given, by group id.
        rules: The model's resize rules.
        asset_root: Folder that mask paths are relative to.
    """

    sources: Mapping[str, View]
    rules: ResizeRules
    asset_root: Path

    @classmethod
    def of(cls, groups: Mapping[str, Group], arm: Arm, *, seed: int, rules: ResizeRules, asset_root: Path) -> Evidence:
        """Return an arm's evidence; shuffling is keyed by the plan's seed."""
        full_views = {group_id: group.full for group_id, group in groups.items()}
        sources = evidence_sources(full_views, shuffled=arm.evidence == "shuffled", seed=seed)
        return cls(sources=sources, rules=rules, asset_root=asset_root)

    def shares(self, group: Group) -> tuple[float, ...] | None:
        """Return the covered share of every image token of a group's FULL view, or ``None``."""
        source = self.sources[group.group_id]
        return view_shares(group.full, self.rules, asset_root=self.asset_root, evidence_of=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupRows:
    """A group's rows in a backward pass.

    Attributes:
        group: The group.
        rows: The rows by view and candidate.
        start: Index of its first row among all rows of the backward pass.
    """

    group: Group
    rows: list[list[ScoreRow]]
    start: int

    @property
    def count(self) -> int:
        return sum(map(len, self.rows))

    @property
    def views(self) -> list[EncodedView]:
        return [rows[0].view for rows in self.rows]


class EviPoTrainer(AlignedGRPOTrainer):
    """The trainer of the ``evi_po`` arms."""

    def __init__(
        self,
        *,
        evi_po: EviPo,
        arm: Arm,
        groups: Mapping[str, Group],
        encoder: ViewEncoder,
        grounding: Evidence,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._evi_po = evi_po
        self._arm = arm
        self._groups = groups
        self._encoder = encoder
        self._grounding = grounding
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._terminal = turn_end(self._tokenizer, self._constraint.terminal)
        geometry = self._schedule.geometry
        self._scale = group_scale(ranks=geometry.ranks, slots_per_step=geometry.slots_per_cycle)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        groups: list[_GroupRows] = []
        start = 0
        for group in self._groups_of_pass():
            groups.append(self._group_rows(group, start))
            start += groups[-1].count
        with self.accelerator.autocast():
            scores, states = self._score(model, groups)
        added = self._direction_part(groups, scores) + self._evidence_part(groups, states)
        if self.accelerator.sync_gradients:
            self._log_sums()
        return loss + self._scale * added

    def _groups_of_pass(self) -> list[Group]:
        """Return the groups that this backward pass scores: its share of the rank's slot visits in the cycle, in order.

        Not those of the pass's rows: TRL shuffles a cycle's rows, so all of a step's groups may meet in one pass.
        """
        visits = [prompt for prompt in self._slot_prompts if prompt.rollout.generation == 0]
        passes = self._schedule.geometry.accumulation
        share = shares(len(visits), passes)[self._step % passes]
        return [self._groups[visits[index].group_id] for index in share]

    def _group_rows(self, group: Group, start: int) -> _GroupRows:
        answers = tokenise_candidates(group.candidates, self._tokenizer, terminal=self._terminal)
        views = [self._encoder.encode(item.view, group.question, group.choices) for item in group.views]
        rows = [[ScoreRow(view=view, candidate=answer) for answer in answers] for view in views]
        return _GroupRows(group=group, rows=rows, start=start)

    def _score(self, model: Any, groups: list[_GroupRows]) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
        """Score all rows of a backward pass.

        Args:
            model: The policy, as the trainer wraps it.
            groups: The groups of this rank.

        Returns:
            The rows' scores; by row index the states that evidence needs, of FULL views with their gold candidate.
        """
        # Not through DDP's wrapper: it prepares for one backward at each of its forwards.
        policy = self.accelerator.unwrap_model(model).get_base_model()
        device, limit = self.accelerator.device, self._evi_po.max_rows_per_forward
        again = partial(checkpointed, self.loop)
        views = [view for item in groups for view in item.views]
        features = image_features(policy, views, limit=limit, device=device, call=again)
        rows = [row for item in groups for view in item.rows for row in view]
        gold = {item.start for item in groups}
        scores: list[Tensor] = []
        states: dict[int, tuple[Tensor, Tensor]] = {}
        batches = chunks(len(rows), limit)
        for batch in batches:
            places = [place for place, index in enumerate(batch) if index in gold]
            values, found = score_rows(
                policy,
                [rows[index] for index in batch],
                features,
                pad=int(self._tokenizer.pad_token_id),
                device=device,
                gold=places,
                # The backward begins with the last forward, and has done with it before it computes another again.
                call=plain if batch is batches[-1] else again,
            )
            scores.append(values)
            states.update(zip((batch[place] for place in places), found, strict=True))
        self.loop.counters.scored_tokens += sum(len(row.candidate.ids) - row.candidate.scored_from for row in rows)
        self._sums["rows"] += len(rows)
        self._sums["forwards"] += len(batches)
        return torch.cat(scores) if scores else torch.zeros(0, device=device), states

    def _direction_part(self, groups: list[_GroupRows], scores: Tensor) -> Tensor:
        """Return lambda_dir times the sum of the groups' direction terms."""
        evi_po = self._evi_po
        found = []
        for item in groups:
            width = len(item.group.candidates)
            table = scores[item.start : item.start + item.count].view(-1, width)
            found.append(self._direction(item.group, table))
        shift = sum((part.shift for part in found), start=scores.new_zeros(()))
        control = sum((part.control for part in found), start=scores.new_zeros(()))
        for part in found:
            self._sums["shift"] += float(part.shift.detach())
            self._sums["control"] += float(part.control.detach())
            self._sums["delta"] += float(part.deltas.sum())
            self._sums["views"] += len(part.deltas)
            self._sums["views_met"] += part.views_met
            self._sums["shift_groups"] += part.has_shift
            self._sums["control_groups"] += part.has_control
        self._sums["groups"] += len(found)
        if any(part.has_shift for part in found):
            check_term(self.loop.counters, "direction", evi_po.lambda_dir * shift, [scores])
        if any(part.has_control for part in found):
            check_term(self.loop.counters, "control", evi_po.lambda_dir * evi_po.kappa * control, [scores])
        return evi_po.lambda_dir * (shift + evi_po.kappa * control)

    def _direction(self, group: Group, table: Tensor) -> Direction:
        """Return a group's direction term from its scores; shape (views, candidates)."""

        def of(*roles: str) -> list[int]:
            return [index for index, item in enumerate(group.views) if item.view.role.value in roles]

        intervened = of("MISSING", "SUBSTITUTE")
        scores = GroupScores(
            full=table[0],
            intervened=table[intervened],
            targets=tuple(group.views[index].target for index in intervened),
            control=table[of("CONTROL")],
        )
        if self._arm.direction == "cross_entropy":
            return cross_entropy(scores, kappa=self._evi_po.kappa)
        return direction(scores, margin=self._evi_po.margin, kappa=self._evi_po.kappa)

    def _evidence_part(self, groups: list[_GroupRows], states: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Return lambda_ev times the sum of the groups' evidence terms."""
        found: list[Tensor] = []
        for item in groups:
            shares = self._grounding.shares(item.group)
            if shares is None:
                continue
            term = evidence(*states[item.start], shares, tau=self._evi_po.tau)
            if term is not None:
                found.append(term)
                self._sums["evidence"] += float(term.detach())
        self._sums["evidence_groups"] += len(found)
        total = torch.stack(found).sum() if found else torch.zeros((), device=self.accelerator.device)
        if found:
            used = [state for pair in states.values() for state in pair]
            check_term(self.loop.counters, "evidence", self._evi_po.lambda_ev * total, used)
        return self._evi_po.lambda_ev * total

    def _log_sums(self) -> None:
        """Log the optimizer step over all ranks: each mean, and how many groups, rows and forwards there were."""
        ranks = self._schedule.geometry.ranks
        local = torch.tensor([float(self._sums[name]) for name in _SUMMED], dtype=torch.float64)
        summed = self.accelerator.reduce(local.to(self.accelerator.device), reduction="sum")
        totals = dict(zip(_SUMMED, summed.tolist(), strict=True))
        self._sums.clear()
        metrics = self._metrics["train"]
        for name, count in _MEANS.items():
            metrics[f"evi_po/{name}"].append(totals[name] / totals[count] if totals[count] else 0.0)
        for name in ("groups", "shift_groups", "control_groups", "evidence_groups", "rows"):
            metrics[f"evi_po/{name}"].append(totals[name])
        metrics["evi_po/forwards"].append(totals["forwards"] / ranks)


# By metric: what it is a mean over.
_MEANS = {
    "shift": "shift_groups",
    "control": "control_groups",
    "evidence": "evidence_groups",
    "delta": "views",
    "views_met": "views",
}
_SUMMED = (*_MEANS, "views", "groups", "shift_groups", "control_groups", "evidence_groups", "rows", "forwards")
