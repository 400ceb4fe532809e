"""Diverse beam search (arXiv 1610.02424): groups of beams, each kept away from what earlier groups choose at the same step.

    model.generate(**inputs, num_beams=6, custom_generate=transduct.decoding.beam_search, beam_groups=3, diversity_penalty=0.5)

Within a step, groups take turns: a token's score falls by the penalty for each beam of an earlier group that has just chosen it
(Hamming diversity). A source is done when all its groups are; its hypotheses are the best of all groups.

Shapes: `U` = sources * groups, `n` = beams a group, `G` groups, `V` vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch

from transduct.decoding.beam import NEVER, BeamOptions, BeamSearch, Hypotheses
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.training.checks import check_count, check_number


class DiverseBeamSearch(BeamSearch):
    """A beam search whose unit is a group of a source.

    Raises:
        ValueError: for groups of unequal size, or a negative penalty.
    """

    def __init__(self, rows: Rows, processors: RowProcessors, criteria: Any, options: BeamOptions, groups: int, penalty: float):
        check_count(groups, "beam_groups", 1)
        if options.beams % groups:
            raise ValueError(f"num_beams={options.beams} must be a multiple of beam_groups={groups}")
        check_number(penalty, "diversity_penalty")
        if penalty < 0:
            raise ValueError(f"diversity_penalty={penalty} must not be negative")
        self.groups = groups
        self.penalty = penalty
        beams = options.beams // groups
        units = replace(
            options,
            beams=beams,
            wanted=min(options.wanted, beams),
            most=options.most.repeat_interleave(groups),
            least=None if options.least is None else options.least.repeat_interleave(groups),
        )
        super().__init__(rows, processors, criteria, units)

    def step(self) -> None:
        values = self.forbid_ends(self.processed(self.rows.logits()))  # (U*n, V)
        values = values.view(-1, self.groups, self.options.beams, values.shape[1])  # (B, G, n, V)
        counts = values.new_zeros(values.shape[0], values.shape[3])  # (B, V), choices of earlier groups
        chosen = []
        for group in range(self.groups):
            chosen.append(self.turn(group, values[:, group] - self.penalty * counts[:, None]))
            scores, _, tokens = chosen[-1]  # (B, n) each
            counts.scatter_add_(1, tokens, (scores > NEVER).to(counts.dtype))
        self.scores, origins, tokens = (torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*chosen, strict=True))  # (U, n)
        self.advance(origins, tokens)
        self.leave()

    def turn(self, group: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One group's choice from its scores (B, n, V): log-probabilities, beams and tokens (B, n) that it goes on with."""
        part = _Part(self, group)
        scores, origins, tokens = part.best_of(values.flatten(0, 1))  # (B, K)
        done = part.finished(origins, tokens)
        best = self.options.beams
        part.collect(scores[:, :best], origins[:, :best], tokens[:, :best], done[:, :best])
        scores, index = scores.masked_fill(done, NEVER).topk(best)  # (B, n)
        return scores, origins.gather(1, index), tokens.gather(1, index)

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        return self.processors(self.ids, self.log_softmax(logits), self.alive[:: self.groups] // self.groups)

    def leave(self) -> None:
        """Let the sources go all of whose groups are done."""
        done = self.is_done()  # (U)
        self.scores[done] = NEVER
        stays = ~done.view(-1, self.groups).all(1)  # (B)
        if not stays.any():
            self.alive = self.alive[:0]
        elif not stays.all() and self.rows.can_leave:
            order = self.rows.compact(stays)  # (B')
            self.keep((order[:, None] * self.groups + torch.arange(self.groups, device=order.device)).flatten())

    def run(self) -> Hypotheses:
        """The hypotheses of all groups of a source together, best first."""
        found = super().run()
        shape = len(found.scores) // self.groups, -1
        scores, best = found.scores.view(*shape).sort(dim=1, descending=True, stable=True)  # (sources, N)
        ids = found.ids.view(*shape, found.ids.shape[2])
        return Hypotheses(
            ids=ids.gather(1, best[:, :, None].expand_as(ids)),
            lengths=found.lengths.view(*shape).gather(1, best),
            scores=scores,
            log_probs=found.log_probs.view(*shape).gather(1, best),
        )


class _Part(BeamSearch):
    """One group of every source, as a search of its own for the length of a turn."""

    def __init__(self, search: DiverseBeamSearch, group: int):
        self.rows, self.criteria, self.options = search.rows, search.criteria, search.options
        self.prompt, self.found = search.prompt, search.found
        self.alive, self.scores = search.alive[group :: search.groups], search.scores[group :: search.groups]
        shape = len(self.alive), search.groups, search.options.beams, -1
        self.own_ids = search.ids.view(*shape)[:, group].flatten(0, 1)  # (B*n, T)

    @property
    def ids(self) -> torch.Tensor:
        return self.own_ids
