"""What identifies the questions, the tokenizer and the template of a run."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from datasets import Dataset

from exgrpo.errors import DataError
from exgrpo.experience import StoreIdentity, question_id
from exgrpo.train.config import ExGRPOConfig
from exgrpo.verify import AnswerReward


def check_dataset(dataset: Any) -> None:
    """Raise a DataError unless `dataset` is one that questions can be drawn from by position."""
    if not isinstance(dataset, Dataset):
        raise DataError(
            "train_dataset",
            expected="a datasets.Dataset, since replay returns to its questions",
            found=type(dataset).__name__,
            hint="load it without streaming, or materialise it with Dataset.from_generator",
        )
    if "prompt" not in dataset.column_names:
        raise DataError(
            "train_dataset",
            expected="a column 'prompt'",
            found=dataset.column_names,
            hint="rename the column that holds the question: dataset.rename_column(old, 'prompt')",
        )
    images = {"image", "images"} & set(dataset.column_names)
    if images:
        raise DataError(
            "train_dataset",
            expected="text only: experience records hold token ids",
            found=f"columns {sorted(images)}",
            hint="remove the columns, or train with trl.GRPOTrainer",
        )


def question_ids(dataset: Dataset, args: ExGRPOConfig) -> list[str]:
    """Return the id of each row [rows]: the id column's value, or a hash of prompt and answer.

    Raises:
        DataError: where the id column does not exist or holds an empty id.
    """
    column = args.question_id_column
    if column is None:
        answers = dataset[args.answer_column] if args.answer_column in dataset.column_names else [None] * len(dataset)
        return [
            question_id(prompt, None if answer is None else str(answer))
            for prompt, answer in zip(dataset["prompt"], answers, strict=True)
        ]
    if column not in dataset.column_names:
        raise DataError(
            "question_id_column",
            expected=f"one of the data set's columns {dataset.column_names}",
            found=column,
            hint="leave it out to identify questions by prompt and answer",
        )
    ids = [str(value) if value is not None else "" for value in dataset[column]]
    if "" in ids:
        raise DataError(
            f"column {column!r}, row {ids.index('')}",
            expected="an id in every row",
            found="none",
            hint="fill it, or leave question_id_column out to identify questions by prompt and answer",
        )
    return ids


def store_identity(args: ExGRPOConfig, tokenizer: Any, ids: list[str], reward_funcs: Any) -> StoreIdentity:
    """Return what a store must have in common with this run."""
    functions = reward_funcs if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    verifiers = [function.verifier for function in functions if isinstance(function, AnswerReward)]
    return StoreIdentity(
        num_rollouts=args.num_generations,
        tokenizer=_digest({"vocabulary": tokenizer.get_vocab(), "special": tokenizer.special_tokens_map}),
        template=_digest([tokenizer.chat_template, args.chat_template_kwargs]),
        dataset=_digest(sorted(set(ids))),
        verifier=args.verifier or (verifiers[0] if verifiers else "reward_function@1"),
    )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
