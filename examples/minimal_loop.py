"""ExGRPO in one file of plain torch: a model learns from its own past successes, and you can read how.

    python examples/minimal_loop.py --steps 40

The experience (what to keep, what to replay) and the objective (how to learn from it) come from the package; the loop
around them is all here: no trainer, one process, one update a batch. Letters: Q questions, K rollouts, B = Q K rows,
P prompt tokens, T response tokens, V vocabulary. The method: arXiv 2510.02245.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.assets import chain_base_path
from exgrpo.experience import ExperienceReplay, ReplaySettings, StoreIdentity
from exgrpo.objective import (
    ObjectiveSettings,
    group_advantages,
    mean_entropy,
    mixed_policy_loss,
    row_weights,
    token_log_probs_and_entropies,
)
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import ChainQuestion, ChainSettings, check_answer, make_questions
from exgrpo.types import Group, Replay, Rollout

MAX_RESPONSE = 64


@dataclass
class Row:
    """One trajectory of the batch: written now, or, where `replay` is set, by a past policy."""

    question: ChainQuestion
    prompt_ids: list[int]
    response_ids: list[int]
    reward: float
    replay: Replay | None = None


@dataclass
class Forward:
    """What one forward says of B rows: log_probs and entropies [B, T] in nats, mask [B, T] True at response tokens."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    mask: torch.Tensor


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[ChainQuestion],
    copies: Sequence[int],
) -> list[Row]:
    """Write `copies[i]` responses to question i at temperature 1 and judge them."""
    asked = [question for question, num in zip(questions, copies, strict=True) for _ in range(num)]
    inputs = tokenizer([question.prompt for question in asked], return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_RESPONSE)
    rows = []
    for question, ids in zip(asked, output[:, inputs["input_ids"].size(1) :].tolist(), strict=True):
        # The exact ids up to and with the end token: text is never turned into ids again.
        length = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        text = tokenizer.decode(ids[:length], skip_special_tokens=True)
        reward = float(check_answer(question.prompt, text))
        rows.append(Row(question, tokenizer(question.prompt)["input_ids"], ids[:length], reward))
    return rows


def forward(model: PreTrainedModel, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Forward:
    """Run the model over prompt + response of each row, padded on the right, and look at the response tokens."""
    sequences = [torch.tensor([*prompt, *response]) for prompt, response in zip(prompts, responses, strict=True)]
    ids = pad_sequence(sequences, batch_first=True)
    attention = pad_sequence([torch.ones_like(sequence) for sequence in sequences], batch_first=True)
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]  # position t predicts token t + 1
    tokens = token_log_probs_and_entropies(logits, ids[:, 1:])
    positions = torch.arange(1, ids.size(1))
    starts = torch.tensor([len(prompt) for prompt in prompts]).unsqueeze(1)
    mask = (positions >= starts) & (positions < attention.sum(dim=1, keepdim=True))
    return Forward(tokens.log_probs, tokens.entropies, mask)


def recorded_log_probs(rows: Sequence[Row], mask: torch.Tensor) -> torch.Tensor:
    """Lay the past policies' log-probs out like `mask` [B, T]; zero in rows that are written now."""
    behaviour = torch.zeros(mask.shape)
    for number, row in enumerate(rows):
        if row.replay is not None:
            behaviour[number, mask[number]] = torch.from_numpy(row.replay.experience.behaviour_log_probs.copy())
    return behaviour


def batch_loss(rows: Sequence[Row], now: Forward, group_size: int, settings: ObjectiveSettings) -> torch.Tensor:
    """The mixed objective on whole groups of rows: fresh rows clipped, replayed rows shaped."""
    replayed = torch.tensor([row.replay is not None for row in rows])
    advantages = group_advantages(torch.tensor([row.reward for row in rows]), group_size, "none")
    return mixed_policy_loss(
        log_probs=now.log_probs,
        entropies=now.entropies,
        response_mask=now.mask,
        advantages=advantages,
        replayed=replayed,
        behaviour_log_probs=recorded_log_probs(rows, now.mask),
        behaviour_known=replayed,  # fresh rows were written by the policy as it still is
        settings=settings,
        weights=row_weights(now.mask, settings),
    ).loss


def score(model: PreTrainedModel, replay: ExperienceReplay, ids: Sequence[str]) -> dict[str, float]:
    """How uncertain the current policy is of stored trajectories: experience id -> mean token entropy."""
    if not ids:
        return {}
    stored = replay.load(ids)
    with torch.no_grad():
        now = forward(model, [e.prompt_ids for e in stored], [e.response_ids for e in stored])
    return dict(zip(ids, mean_entropy(now.entropies, now.mask).tolist(), strict=True))


def to_groups(rows: Sequence[Row], now: Forward, group_size: int) -> list[Group]:
    """The batch as the experience wants to see it: what was written, by which probabilities, right or wrong."""
    groups = []
    for start in range(0, len(rows), group_size):
        numbers = range(start, start + group_size)
        rollouts = tuple(to_rollout(rows[n], now, n) for n in numbers if rows[n].replay is None)
        replay = rows[numbers[-1]].replay
        groups.append(
            Group(
                question_id=rows[start].question.id,
                prompt_ids=np.array(rows[start].prompt_ids, dtype=np.int32),
                rollouts=rollouts,
                replayed_id=replay.experience.id if replay else None,
            )
        )
    return groups


def to_rollout(row: Row, now: Forward, number: int) -> Rollout:
    """One new response with what the policy that wrote it thought of it."""
    mask = now.mask[number]
    return Rollout(
        response_ids=np.array(row.response_ids, dtype=np.int32),
        behaviour_log_probs=now.log_probs[number, mask].detach().numpy(),
        reward=row.reward,
        correct=row.reward == 1.0,
        verdict="correct" if row.reward == 1.0 else "wrong",
        mean_entropy=now.entropies[number, mask].mean().item(),
        truncated=len(row.response_ids) == MAX_RESPONSE,
    )


def train_step(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    replay: ExperienceReplay,
    questions: dict[str, ChainQuestion],
    settings: ObjectiveSettings,
    *,
    step: int,
    num_questions: int,
) -> dict[str, float]:
    """One step of ExGRPO: propose, choose, generate, learn, commit."""
    group_size = replay.settings.num_rollouts

    # 1. Which questions to replay, and for each the trajectory the current policy is least uncertain about.
    proposal = replay.propose(step, num_questions)
    entropies = score(model, replay, [c.id for question in proposal.questions for c in question.candidates])
    plan = replay.choose(proposal, entropies)
    replays = {item.experience.question_id: item for item in plan.replays}

    # 2. The rest of the batch is fresh. A replayed question gets K - 1 new rollouts and its recorded trajectory.
    others = sorted(questions.keys() - replays.keys())
    rng = derive_rng(0, "fresh", step=step)
    fresh = [others[n] for n in rng.choice(len(others), num_questions - len(replays), replace=False)]
    asked = [questions[question_id] for question_id in [*fresh, *replays]]
    new = generate(model, tokenizer, asked, [group_size] * len(fresh) + [group_size - 1] * len(replays))
    rows = new[: len(fresh) * group_size]
    for number, item in enumerate(plan.replays):
        start = len(fresh) * group_size + number * (group_size - 1)
        past = item.experience
        recorded = Row(questions[past.question_id], list(past.prompt_ids), list(past.response_ids), past.reward, item)
        rows += [*new[start : start + group_size - 1], recorded]

    # 3. One forward serves the loss and, since the policy has not moved yet, the record of new experience.
    now = forward(model, [row.prompt_ids for row in rows], [row.response_ids for row in rows])
    loss = batch_loss(rows, now, group_size, settings)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

    # 4. The only mutation of the experience: successes in, difficulties updated, mastered questions out.
    report = replay.commit(step, to_groups(rows, now, group_size), plan)
    written = [row.reward for row in rows[: len(fresh) * group_size]]
    return {
        "loss": loss.item(),
        "pass@1": sum(written) / len(written),
        "replayed": len(plan.replays),
        "stored": replay.status().trajectories,
        "retired": report.retired,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Train the packaged base policy on the chain task and print a line per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--questions", type=int, default=64, help="questions in a batch")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts per question")
    parser.add_argument("--learning_rate", type=float, default=7e-5)
    parser.add_argument("--start_threshold", type=float, default=0.35, help="Pass@1 above which replay begins")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)

    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(chain_base_path())
    model = AutoModelForCausalLM.from_pretrained(chain_base_path())
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=0.0)
    made = make_questions(ChainSettings(), seed=arguments.seed, split="train")
    settings = ReplaySettings(num_rollouts=arguments.rollouts, start_threshold=arguments.start_threshold)
    identity = StoreIdentity(arguments.rollouts, "chain characters", "plain", "chain", "chain@1")
    with ExperienceReplay.open(None, settings, identity=identity, seed=arguments.seed) as replay:
        for step in range(1, arguments.steps + 1):
            figures = train_step(
                model,
                tokenizer,
                optimizer,
                replay,
                {question.id: question for question in made},
                ObjectiveSettings(max_response_length=MAX_RESPONSE, entropy_coef=0.001),
                step=step,
                num_questions=arguments.questions,
            )
            print(f"step {step:3d}  " + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
