"""What happens before a run trains: questions are loaded and checked, and a few of them are answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.errors import DataError
from exgrpo.evaluation.generate import sample_responses
from exgrpo.tasks.check import DataReport, chat_renderer, check_questions
from exgrpo.tasks.prompts import find_template
from exgrpo.tasks.questions import columns_of, load_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.tasks.sources import Row
from exgrpo.train.run_config import RunConfig, resolve_model
from exgrpo.verify import Judge, open_judge

SMOKE_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Questions that can be used, and what the check said.

    Attributes:
        train, validation: questions; no validation where none is configured.
        thinks, boxed: what the prompt template asks for.
        reports: one per source.
    """

    train: list[Row]
    validation: list[Row]
    thinks: bool
    boxed: bool
    reports: tuple[DataReport, ...]


def prepare_data(
    config: RunConfig, judge: Judge, tokenizer: PreTrainedTokenizerBase, *, strict: bool = True
) -> PreparedData:
    """Return the questions of a run, checked.

    Args:
        config: sources, columns, template and limits.
        judge: tries the gold answers.
        tokenizer: counts the tokens of rendered prompts.
        strict: whether a finding that stops a run raises; without, it stands in the reports alone.

    Raises:
        ConfigError: for a source, a column or a template that does not exist.
        DataError: for a source that cannot be read, and where `strict` for any finding that stops a run.
    """
    data = config.data
    template = find_template(data.data_template) if data.data_template else None
    train = _load(config, data.data_train, "train")
    validation = _load(config, data.data_validation, "held_out") if data.data_validation else []
    benchmarks = {source: _load_benchmark(config, source) for source in data.data_benchmarks or []}
    parts = [(data.data_train, train, benchmarks | ({data.data_validation or "": validation} if validation else {}))]
    if validation:
        parts.append((f"{data.data_validation} (validation)", validation, benchmarks))
    checked = [
        check_questions(
            questions,
            source=name,
            judge=judge,
            render=chat_renderer(tokenizer, config.training.chat_template_kwargs),
            count_tokens=lambda texts: [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]],
            max_prompt_tokens=data.data_max_prompt_tokens,
            drop_bad=data.data_bad_rows == "drop",
            others=others,
        )
        for name, questions, others in parts
    ]
    reports = tuple(part.report for part in checked)
    if strict:
        for report in reports:
            report.require()
    return PreparedData(
        train=checked[0].questions,
        validation=checked[1].questions if validation else [],
        thinks=template is not None and template.thinks,
        boxed=template is not None and template.boxed,
        reports=reports,
    )


def check_data(config: RunConfig) -> tuple[DataReport, ...]:
    """Return a report on each source of a configuration; no model is loaded."""
    judge = open_run_judge(config)
    try:
        return prepare_data(config, judge, load_tokenizer(config), strict=False).reports
    finally:
        judge.close()


def load_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a run, which pads on the left."""
    return AutoTokenizer.from_pretrained(
        resolve_model(config.model.model_name_or_path),
        revision=config.model.model_revision,
        padding_side="left",
        trust_remote_code=config.training.trust_remote_code,
    )


def open_run_judge(config: RunConfig) -> Judge:
    """Return what judges the answers of a run; whoever opens it closes it."""
    source, template = config.data.data_train, config.data.data_template
    default = source if source in ("chain", "gym") else "math"
    name = config.verify.verify_with or default
    knows_thinking = ":" not in name and name != "chain"
    thinks = template is not None and find_template(template).thinks
    return open_judge(
        config.verify, default=default, extra={"require_think": True} if thinks and knows_thinking else {}
    )


def smoke_rollout(
    config: RunConfig, questions: list[Row], judge: Judge, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Answer a few questions, and stop the run where that cannot teach anything.

    Raises:
        DataError: where every response was cut at the length limit, or no answer was found in any.
    """
    asked = questions[: config.data.data_smoke_questions]
    if not asked:
        return
    training = config.training
    responses = sample_responses(
        model,
        tokenizer,
        [question["prompt"] for question in asked],
        num_samples=SMOKE_SAMPLES,
        max_new_tokens=training.max_completion_length,
        seed=training.seed,
        temperature=training.temperature,
        chat_template_kwargs=training.chat_template_kwargs,
    )
    rows = [(question, response) for question, answers in zip(asked, responses, strict=True) for response in answers]
    judgements = judge.judge(
        [response.text for _, response in rows],
        [question["answer"] for question, _ in rows],
        [columns_of(question) for question, _ in rows],
    )
    verdicts = Counter(judgement.verdict for judgement in judgements)
    num_truncated = sum(response.truncated for _, response in rows)
    shown = f"{rows[0][1].text[:300]!r}"
    if num_truncated == len(rows):
        raise DataError(
            "smoke rollout",
            expected=f"responses that end within max_completion_length={training.max_completion_length}",
            found=f"all {len(rows)} were cut; the first begins {shown}",
            hint="raise max_completion_length, or check the template and the tokenizer's end token",
        )
    if not verdicts["correct"] + verdicts["wrong"]:
        raise DataError(
            "smoke rollout",
            expected="an answer in at least one response",
            found=f"{dict(verdicts)}; the first response begins {shown}",
            hint="check data_template against verify_with: the prompt must ask for the form that the verifier reads",
        )


def _load(config: RunConfig, source: str, split: str) -> list[Row]:
    return load_questions(
        source,
        config.data,
        split="train" if split == "train" else "held_out",
        seed=config.training.seed,
        chain=config.chain,
    )


def _load_benchmark(config: RunConfig, source: str) -> list[Row]:
    # A benchmark has columns of its own; only its questions matter here.
    return load_questions(
        source,
        DataSettings(data_gym=config.data.data_gym, data_validation_split=config.data.data_validation_split),
        split="held_out",
        seed=config.training.seed,
        chain=config.chain,
    )
