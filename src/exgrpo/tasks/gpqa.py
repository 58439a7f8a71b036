"""GPQA-Diamond as multiple choice: the Hub has the right option first, so the options need an order of their own."""

from __future__ import annotations

from typing import Any

from exgrpo.seeding import derive_rng
from exgrpo.tasks.settings import DataSettings
from exgrpo.tasks.sources import read_rows

SOURCE = "Idavidrein/gpqa"
SETTINGS = DataSettings(data_name="gpqa_diamond", data_validation_split="train")


def diamond(*, split: str, seed: int) -> list[dict[str, Any]]:
    """Return the questions with shuffled options, in an order that depends on the question alone."""
    return [shuffled(row) for row in read_rows(SOURCE, SETTINGS, split="held_out", seed=seed)]


def shuffled(row: dict[str, Any]) -> dict[str, Any]:
    """Return question, options and the letter of the right one."""
    options = [row["Correct Answer"], *(row[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    order = derive_rng(0, "gpqa", row["Question"]).permutation(4).tolist()
    return {
        "question": row["Question"].strip(),
        "options": [options[n].strip() for n in order],
        "answer": "ABCD"[order.index(0)],
    }
