"""What keeps a broken number out of the weights: an update with anything that is not finite is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from exgrpo.errors import NotFiniteError

if TYPE_CHECKING:
    from exgrpo.train.trainer import ExGRPOTrainer

FILE = "skipped_updates.jsonl"


class FiniteGuard(TrainerCallback):
    """Looks at loss, log-probs, importance ratios and gradients before each update.

    Where one is not finite the update is skipped: weights and optimizer state stay as they are. What caused it goes to
    `skipped_updates.jsonl`, with the rows; several such updates in a row stop the run.

    Args:
        trainer: whose updates.
        most_in_a_row: skipped updates in a row that a run survives.
    """

    def __init__(self, trainer: ExGRPOTrainer, most_in_a_row: int):
        self._trainer = trainer
        self._most_in_a_row = most_in_a_row
        self._in_a_row = 0
        self._faults: list[dict[str, Any]] = []

    def look_at(
        self,
        values: dict[str, torch.Tensor],
        mask: torch.Tensor,
        question_of_row: list[str],
        replayed: torch.Tensor,
    ) -> None:
        """Note which of a micro-batch's values are not finite.

        Args:
            values: name -> a scalar, or values per token [b, T] that count where `mask` does.
            mask: [b, T].
            question_of_row: [b] question ids.
            replayed: bool [b].
        """
        for name, value in values.items():
            if value.ndim == 0:
                if not torch.isfinite(value):
                    self._faults.append({"what": name, "rows": []})
                continue
            bad = (~torch.isfinite(torch.where(mask, value, 0.0))).any(dim=1)
            if bad.any():
                rows = [
                    {"question_id": question_of_row[n], "replayed": bool(replayed[n])}
                    for n in bad.nonzero().flatten().tolist()
                ]
                self._faults.append({"what": name, "rows": rows})

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Skip the update where something is not finite.

        Raises:
            NotFiniteError: where too many were skipped in a row.
        """
        assert model is not None
        assert optimizer is not None
        faults, self._faults = self._faults, []
        if not faults and not _has_finite_gradients(model):
            faults = [{"what": "gradient", "rows": []}]
        self._trainer.log_values({"guard/skipped_updates": float(bool(faults))})
        if not faults:
            self._in_a_row = 0
            return
        # An optimizer leaves parameters without a gradient alone, its own moments too.
        optimizer.zero_grad(set_to_none=True)
        self._in_a_row += 1
        path = Path(args.output_dir) / FILE
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"update": state.global_step + 1, "not_finite": faults}) + "\n")
        if self._in_a_row > self._most_in_a_row:
            raise NotFiniteError(
                f"update {state.global_step + 1}",
                expected=f"at most {self._most_in_a_row} skipped updates in a row",
                found=f"{self._in_a_row}; not finite: {', '.join(sorted({fault['what'] for fault in faults}))}",
                hint=f"see {path} for the rows; lower the learning rate, or train in float32 or bfloat16. "
                "exgrpo train --resume goes on from the last checkpoint",
            )


def _has_finite_gradients(model: nn.Module) -> bool:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    # One number per tensor, and one look at the device for all of them.
    return bool(torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all()) if gradients else True
