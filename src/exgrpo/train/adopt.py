"""A store of an earlier run made that of another data set, template or verifier."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exgrpo.errors import StoreMismatchError
from exgrpo.evaluation.generate import prompt_ids
from exgrpo.experience import SQLiteStore, StoreIdentity
from exgrpo.tasks.questions import to_dataset
from exgrpo.train.prepare import load_tokenizer, open_run_judge, prepare_data
from exgrpo.train.questions import question_ids, store_identity
from exgrpo.train.run_config import RunConfig, load_config
from exgrpo.types import Usage

NO_QUESTION = "its question is not in the data set"
OTHER_PROMPT = "its question is asked in other tokens"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What adopting a store came to.

    Attributes:
        changed: fields of the identity that differ, with the old and the new value.
        quarantined: reason -> trajectories that cannot be replayed in the new run and are kept from it.
        kept: trajectories that can.
    """

    changed: dict[str, tuple[Any, Any]]
    quarantined: dict[str, int]
    kept: int

    def as_text(self) -> str:
        """Return the outcome for a person."""
        lines = [f"{name}: {old} -> {new}" for name, (old, new) in self.changed.items()] or ["nothing differs"]
        lines += [f"{count} trajectories kept from replay: {reason}" for reason, count in self.quarantined.items()]
        return "\n".join([*lines, f"{self.kept} trajectories can be replayed"])


def adopt(store: Path, config: Path, overrides: Sequence[str] = ()) -> Adoption:
    """Make a store the experience of a run with another data set, template or verifier.

    Trajectories of questions that the new data set lacks, or asks in other tokens, are quarantined: they could not be
    replayed. Difficulties stay as they are known.

    Args:
        store: the database; no run may own it.
        config: configuration of the new run.
        overrides: command-line words that win over it.

    Raises:
        StoreMismatchError: for another tokenizer or another number of rollouts: token ids and difficulties would mean
            something else.
        StoreError: where the store cannot be opened or a run owns it.
    """
    run = load_config(config, overrides)
    tokenizer = load_tokenizer(run)
    identity, prompts = _new_side(run, tokenizer)
    opened = SQLiteStore(store, None)
    try:
        old = opened.identity
        for name in ("tokenizer", "num_rollouts"):
            if getattr(old, name) != getattr(identity, name):
                raise StoreMismatchError(
                    str(store),
                    expected=f"{name} {getattr(identity, name)}",
                    found=getattr(old, name),
                    hint="its token ids and difficulties mean something else there: begin with an empty experience",
                )
        usages = _unusable(opened, prompts)
        opened.adopt(identity, usages)
        rows = list(opened.trajectories())
        ours, theirs = dataclasses.asdict(identity), dataclasses.asdict(old)
        return Adoption(
            changed={name: (theirs[name], ours[name]) for name in ours if ours[name] != theirs[name]},
            quarantined=dict(Counter(usage.quarantined or "" for usage in usages.values())),
            kept=sum(row.usage.removed is None and row.usage.quarantined is None for row in rows),
        )
    finally:
        opened.close()


def _new_side(run: RunConfig, tokenizer: Any) -> tuple[StoreIdentity, dict[str, list[int]]]:
    """Return the identity of the new run, and the prompt ids of its questions."""
    judge = open_run_judge(run)
    try:
        questions = prepare_data(run, judge, tokenizer).train
        run.training.question_id_column = "id"
        run.training.verifier = run.training.verifier or judge.id
        ids = question_ids(to_dataset(questions), run.training)
    finally:
        judge.close()
    kwargs = run.training.chat_template_kwargs
    prompts = {question["id"]: prompt_ids(tokenizer, question["prompt"], kwargs) for question in questions}
    return store_identity(run.training, tokenizer, ids, []), prompts


def _unusable(store: SQLiteStore, prompts: dict[str, list[int]]) -> dict[str, Usage]:
    """Return the trajectories that the new run could not replay, with the usage that says why."""
    usages: dict[str, Usage] = {}
    asked: dict[str, list[int]] = {}
    for row in store.trajectories():
        if row.usage.quarantined is not None:
            continue
        if row.question_id not in asked:  # a prompt is kept once per question
            (experience,) = store.load([row.id])
            asked[row.question_id] = experience.prompt_ids.tolist()
        if row.question_id not in prompts:
            usages[row.id] = dataclasses.replace(row.usage, quarantined=NO_QUESTION)
        elif prompts[row.question_id] != asked[row.question_id]:
            usages[row.id] = dataclasses.replace(row.usage, quarantined=OTHER_PROMPT)
    return usages
