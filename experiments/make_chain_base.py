"""Make the chain task's base policy: a small Qwen2 that reasons in the right form and slips often.

    python experiments/make_chain_base.py

Supervised fine-tuning from scratch: first on right chains, then on chains in which a share of the step results is
replaced by random digits and the chain goes on from the wrong value. The result knows the form and the arithmetic, but
is unsure of each step: a "noisy reasoner", with room for reinforcement learning to grow into. Writes the model, its
tokenizer and a card with measured accuracy to the package's assets.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from exgrpo.assets import chain_base_path
from exgrpo.evaluation.chain import ChainScores, evaluate_chain
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import CHARACTERS, ChainSettings, reference_steps, split_of

OPERATORS = "+-*"
MIN_TERMS, MAX_TERMS = 2, 10
SAMPLES = 8


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; padding and end of text besides."""
    vocabulary = {"<pad>": 0, "<eos>": 1} | {character: n + 2 for n, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def make_model() -> Qwen2ForCausalLM:
    """A Qwen2 with about a million parameters."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(CHARACTERS) + 2,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def noisy_chain(rng: np.random.Generator, noise: float) -> tuple[str, str]:
    """A training question and a response in which each step's result is a random digit with probability `noise`."""
    while True:
        num_terms = int(rng.integers(MIN_TERMS, MAX_TERMS + 1))
        digits = rng.integers(10, size=num_terms)
        operators = [OPERATORS[n] for n in rng.integers(len(OPERATORS), size=num_terms - 1)]
        prompt = str(digits[0]) + "".join(f"{op}{d}" for op, d in zip(operators, digits[1:], strict=True)) + "="
        if split_of(prompt) == "train":
            break
    value, steps = str(digits[0]), []
    for operator, digit in zip(operators, digits[1:], strict=True):
        right = reference_steps(f"{value}{operator}{digit}=")[0][-1]
        result = str(rng.integers(10)) if rng.random() < noise else right
        steps.append(f"{value}{operator}{digit}={result}")
        value = result
    return prompt, ";".join(steps) + f";#{value}"


def batch_of(tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator, size: int, noise: float):
    """Token ids [B, T] of prompt + response + end, and labels with the prompt and padding left out."""
    ids, labels = [], []
    for prompt, response in (noisy_chain(rng, noise) for _ in range(size)):
        asked = tokenizer(prompt)["input_ids"]
        said = [*tokenizer(response)["input_ids"], tokenizer.eos_token_id]
        ids.append(torch.tensor(asked + said))
        labels.append(torch.tensor([-100] * len(asked) + said))
    return pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, arguments: argparse.Namespace) -> float:
    """Fine-tune and return the last loss (nats per response token)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.learning_rate, arguments.steps, pct_start=0.1)
    began = time.monotonic()
    for step in range(arguments.steps):
        rng = derive_rng(arguments.seed, "chain base", step=step)
        noise = arguments.noise if step >= arguments.clean_steps else 0.0
        ids, labels = batch_of(tokenizer, rng, arguments.batch_size, noise)
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            left = (time.monotonic() - began) / (step + 1) * (arguments.steps - step - 1)
            print(f"step {step + 1:4d}/{arguments.steps}  loss {loss.item():.4f}  {left:.0f} s left", flush=True)
    return loss.item()


@dataclass(frozen=True)
class Measured:
    """Held-out scores of one kind of question: sampled at temperature 1, and greedy."""

    sampled: ChainScores
    greedy: ChainScores


def measure(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, Measured]:
    """The mixes that configurations use, and each length with plus and minus."""
    kinds = {"4 to 8 terms, + -": ChainSettings(), "4 to 8 terms, + - *": ChainSettings(chain_operators="+-*")}
    for n in range(MIN_TERMS, MAX_TERMS + 1):
        # There are 200 chains of two terms in all, and a quarter of them is held out.
        held_out = 25 if n == 2 else 400
        kinds[f"{n} terms, + -"] = ChainSettings(
            chain_min_terms=n, chain_max_terms=n, chain_num_questions=1, chain_num_held_out=held_out
        )
    measured = {}
    for name, settings in kinds.items():
        print(f"measuring: {name}", flush=True)
        measured[name] = Measured(
            sampled=evaluate_chain(model, tokenizer, settings, seed=0, num_samples=SAMPLES),
            greedy=evaluate_chain(model, tokenizer, settings, seed=0, num_samples=1, temperature=0.0),
        )
    return measured


def card(measured: dict[str, Measured], model: Qwen2ForCausalLM, arguments: argparse.Namespace) -> str:
    """The model card."""
    rows = "\n".join(table_row(name, scores) for name, scores in measured.items())
    solved = "\n".join(
        f"| {name} | " + " | ".join(str(count) for count in scores.sampled.questions_by_correct) + " |"
        for name, scores in list(measured.items())[:2]
    )
    return f"""# Base policy of the chain task

A Qwen2 with {model.num_parameters():,} parameters and one token per character, trained from scratch by
`experiments/make_chain_base.py`: {arguments.steps} steps of {arguments.batch_size} chains of {MIN_TERMS} to {MAX_TERMS}
terms with operators `{OPERATORS}`, AdamW at {arguments.learning_rate:g} (one cycle), seed {arguments.seed}. The first
{arguments.clean_steps} steps are without noise; then each step result is replaced by a random digit with probability
{arguments.noise:g}, and the chain goes on from it. Licence: Apache-2.0.

Held-out questions: one greedy response, and {SAMPLES} at temperature 1 with 95 % bootstrap intervals. The length limit
is six tokens a term; what it cuts off counts as truncated.

| questions | greedy | Pass@1 | valid among right | truncated |
|---|---|---|---|---|
{rows}

How many questions had 0, 1, ... {SAMPLES} right answers of {SAMPLES}:

| questions | {" | ".join(str(n) for n in range(SAMPLES + 1))} |
|---|{"---|" * (SAMPLES + 1)}
{solved}
"""


def table_row(name: str, scores: Measured) -> str:
    """One kind of question as a row of the card."""
    right, valid = scores.sampled.pass_at_1, scores.sampled.valid_share
    return (
        f"| {name} | {scores.greedy.pass_at_1.value:.2f} | {right.value:.3f} [{right.low:.3f}, {right.high:.3f}] "
        f"| {valid.value:.2f} [{valid.low:.2f}, {valid.high:.2f}] | {scores.sampled.truncated:.3f} |"
    )


def make(arguments: argparse.Namespace) -> None:
    """Train a policy and save it."""
    torch.manual_seed(arguments.seed)
    tokenizer, model = make_tokenizer(), make_model()
    print(json.dumps({"parameters": model.num_parameters()}))
    loss = train(model, tokenizer, arguments)
    print(f"last loss {loss:.3f} nats a token")
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)


def main() -> None:
    """Train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--clean_steps", type=int, default=400, help="the first steps, without noise")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=chain_base_path())
    parser.add_argument("--measure_only", action="store_true", help="write the card of the policy in --output again")
    arguments = parser.parse_args()
    if not arguments.measure_only:
        make(arguments)
    model = Qwen2ForCausalLM.from_pretrained(arguments.output)
    text = card(measure(model, AutoTokenizer.from_pretrained(arguments.output)), model, arguments)
    (arguments.output / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
