"""The command line: parse, call one function, print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exgrpo.errors import ExGRPOError

Subparsers = Any  # argparse's own class is private

TRAIN_EXAMPLES = """examples:
  exgrpo train configs/chain.yaml
  exgrpo train configs/chain.yaml --learning_rate 3e-5 --seed 1
  exgrpo train configs/chain.yaml --replay_ratio 0 --output_dir runs/on-policy
  exgrpo train configs/chain.yaml --resume
"""
QUICKSTART_EXAMPLES = """examples:
  exgrpo quickstart
  exgrpo quickstart --seed 1 --output_dir runs/second
  exgrpo quickstart --json > summary.json
"""
DATA_EXAMPLES = """examples:
  exgrpo data check configs/chain.yaml
  exgrpo data check mine.yaml --data_bad_rows drop
  exgrpo data check mine.yaml --json
"""
EVAL_EXAMPLES = """examples:
  exgrpo eval runs/quickstart-1 --suite runs/quickstart-1/held-out.yaml
  exgrpo eval Qwen/Qwen2.5-Math-1.5B --suite math
  exgrpo eval models/mine --suite questions.parquet --num_samples 8 --data_template boxed --verify_with numeric
"""
COMPARE_EXAMPLES = """examples:
  exgrpo compare runs/quickstart-1/held-out/before runs/quickstart-1/held-out/after
  exgrpo compare evaluations/a-math evaluations/b-math --json
"""
VERIFY_EXAMPLES = """examples:
  exgrpo experience verify runs/mine/experience.sqlite
  exgrpo experience verify runs/mine/experience.sqlite --quarantine
  exgrpo experience verify old.sqlite --config runs/mine/config.yaml --json
"""


BACKUP_EXAMPLES = """examples:
  exgrpo experience backup runs/mine/experience.sqlite before-the-change.sqlite
"""
ADOPT_EXAMPLES = """examples:
  exgrpo experience adopt old.sqlite --config new.yaml
  exgrpo train new.yaml --experience_path old.sqlite
"""
ROLLBACK_EXAMPLES = """examples:
  exgrpo experience rollback runs/mine/experience.sqlite 120
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0; 1 for an error of ours; 2 for wrong words on the line; 143 for a run that SIGTERM stopped.
    """
    parser = _parser()
    arguments, overrides = parser.parse_known_args(argv)
    if arguments.run is None:
        arguments.parser.print_help()
        return 2
    if overrides and not arguments.takes_overrides:
        arguments.parser.error(f"unknown argument: {overrides[0]}")
    try:
        return int(arguments.run(arguments, overrides))
    except ExGRPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exgrpo", description="Reinforcement learning of reasoning models that learn from their own experience."
    )
    parser.add_argument("--version", action="version", version=f"exgrpo {version('exgrpo')}")
    parser.set_defaults(run=None, parser=parser)
    commands = parser.add_subparsers(metavar="command")
    _add_train(commands)
    _add_quickstart(commands)
    _add_data(commands)
    _add_eval(commands)
    _add_compare(commands)
    _add_experience(commands)
    return parser


def _add(
    commands: Subparsers, name: str, what: str, examples: str, run: Callable[..., int], *, overrides: str = ""
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}. {overrides}".strip(),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser, takes_overrides=bool(overrides))
    return parser


def _add_group(commands: Subparsers, name: str, what: str) -> Subparsers:
    group = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    group.set_defaults(run=None, parser=group)
    return group.add_subparsers(metavar="command")


_OVERRIDES = "Any other --name value overrides the configuration."


def _add_train(commands: Subparsers) -> None:
    train = _add(
        commands, "train", "train a model as a configuration says", TRAIN_EXAMPLES, _train, overrides=_OVERRIDES
    )
    train.add_argument("config", help="YAML file with any setting of docs/settings.md, TRL's GRPOConfig or ModelConfig")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in output_dir")


def _add_quickstart(commands: Subparsers) -> None:
    what = "watch a small model learn from its own successes, in minutes"
    quickstart = _add(commands, "quickstart", what, QUICKSTART_EXAMPLES, _quickstart, overrides=_OVERRIDES)
    quickstart.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")


def _add_data(commands: Subparsers) -> None:
    group = _add_group(commands, "data", "look at questions before they are used")
    what = "check the questions of a configuration, without loading its model"
    check = _add(group, "check", what, DATA_EXAMPLES, _data_check, overrides=_OVERRIDES)
    check.add_argument("config", help="YAML file, as for exgrpo train")
    check.add_argument("--json", action="store_true", help="print the reports as JSON on stdout")


def _add_eval(commands: Subparsers) -> None:
    overrides = "Any other --data_*, --verify_* or --chain_* value overrides the suite's."
    evaluation = _add(
        commands, "eval", "measure a model on a suite of benchmarks", EVAL_EXAMPLES, _eval, overrides=overrides
    )
    evaluation.add_argument("model", help="a run directory, a model folder, a hub id, or chain-base")
    evaluation.add_argument("--suite", required=True, help="math, general, all, a suite file, or a data file")
    evaluation.add_argument("--output_dir", type=Path, help="where responses go; a stopped one goes on there")
    evaluation.add_argument("--num_samples", type=int, help="responses per question, in place of the suite's")
    evaluation.add_argument("--max_new_tokens", type=int, help="length limit, in place of the suite's")
    evaluation.add_argument("--temperature", type=float, help="in place of the suite's; 0 is greedy")
    evaluation.add_argument("--seed", type=int, help="in place of the suite's")
    evaluation.add_argument("--limit", type=int, help="at most this many questions per benchmark, drawn by seed")
    evaluation.add_argument(
        "--batch_size", type=int, default=256, help="rows generated at once; other sizes draw other samples"
    )
    evaluation.add_argument("--engine", choices=["transformers", "vllm"], default="transformers", help="what generates")
    evaluation.add_argument("--json", action="store_true", help="print the scores as JSON on stdout")


def _add_compare(commands: Subparsers) -> None:
    what = "say whether one evaluation is better than another, or whether it is chance"
    compare = _add(commands, "compare", what, COMPARE_EXAMPLES, _compare)
    compare.add_argument("first", type=Path, help="directory of evaluation A")
    compare.add_argument("second", type=Path, help="directory of evaluation B")
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON on stdout")


def _add_experience(commands: Subparsers) -> None:
    group = _add_group(commands, "experience", "look after an experience store")
    what = "judge every stored success again with today's verifier"
    verify = _add(group, "verify", what, VERIFY_EXAMPLES, _experience_verify, overrides=_OVERRIDES)
    verify.add_argument("store", type=Path, help="the database, experience.sqlite of a run")
    verify.add_argument("--config", type=Path, help="configuration of the run (default: config.yaml beside the store)")
    verify.add_argument("--quarantine", action="store_true", help="keep what fails from replay, without deleting it")
    verify.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")
    _add_maintenance(group)


def _add_maintenance(group: Subparsers) -> None:
    backup = _add(group, "backup", "copy a store, also while a run writes it", BACKUP_EXAMPLES, _experience_backup)
    backup.add_argument("store", type=Path, help="the database")
    backup.add_argument("target", type=Path, help="the copy; must not exist yet")
    what = "make a store that of a run with another data set, template or verifier"
    adopt = _add(group, "adopt", what, ADOPT_EXAMPLES, _experience_adopt, overrides=_OVERRIDES)
    adopt.add_argument("store", type=Path, help="the database; no run may own it")
    adopt.add_argument("--config", type=Path, required=True, help="configuration of the new run")
    what = "take a store back to an earlier step, for good"
    rollback = _add(group, "rollback", what, ROLLBACK_EXAMPLES, _experience_rollback)
    rollback.add_argument("store", type=Path, help="the database; no run may own it")
    rollback.add_argument("step", type=int, help="the step to go back to; 0 empties it")


# torch and transformers take seconds to import: only the commands that need them do.


def _train(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.run import train
    from exgrpo.train.run_config import load_config

    print(train(load_config(arguments.config, overrides), resume=arguments.resume))
    return 0


def _quickstart(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.quickstart import quickstart

    summary = quickstart(overrides)
    print(json.dumps(summary.as_dict(), indent=2) if arguments.json else summary.as_text())
    return 0


def _data_check(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.cli.show import print_data_report
    from exgrpo.train.prepare import check_data
    from exgrpo.train.run_config import load_config

    reports = check_data(load_config(arguments.config, overrides))
    if arguments.json:
        print(json.dumps([report.as_dict() for report in reports], indent=2))
    else:
        for report in reports:
            print_data_report(report)
    return int(any(report.errors for report in reports))


def _eval(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.cli.show import print_table
    from exgrpo.evaluation.command import evaluate_model

    given = {name: getattr(arguments, name) for name in ("num_samples", "max_new_tokens", "temperature", "seed")}
    scores, directory = evaluate_model(
        arguments.model,
        arguments.suite,
        directory=arguments.output_dir,
        overrides={**given, **_pairs(arguments.parser, overrides)},
        limit=arguments.limit,
        batch_size=arguments.batch_size,
        engine=arguments.engine,
    )
    if arguments.json:
        print(json.dumps({**scores.as_dict(), "directory": str(directory)}, indent=2))
    else:
        print_table(scores.rows(), title=f"{scores.model} on {scores.suite}")
        print(f"95 % intervals over questions and samples. Responses, scores.json and scores.md are in {directory}")
    return 0


def _compare(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.cli.show import print_table
    from exgrpo.evaluation.compare import compare, table

    comparisons = compare(arguments.first, arguments.second)
    if arguments.json:
        print(json.dumps([comparison.as_dict() for comparison in comparisons], indent=2))
    else:
        print_table(table(comparisons), title=f"A: {arguments.first}   B: {arguments.second}")
        for comparison in comparisons:
            print(f"{comparison.benchmark}: {comparison.verdict}")
    return 0


def _experience_verify(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.reverify import verify_store

    outcome = verify_store(arguments.store, arguments.config, overrides, quarantine=arguments.quarantine)
    print(json.dumps(outcome.as_dict(), indent=2) if arguments.json else outcome.as_text())
    return 0


def _experience_backup(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.experience.maintenance import backup

    step = backup(arguments.store, arguments.target)
    print(f"{arguments.target} holds {arguments.store} as of step {step}")
    return 0


def _experience_adopt(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.adopt import adopt

    print(adopt(arguments.store, arguments.config, overrides).as_text())
    return 0


def _experience_rollback(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.experience.maintenance import roll_back

    before, now = roll_back(arguments.store, arguments.step)
    print(f"{arguments.store} went from step {before} to step {now}")
    return 0


def _pairs(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    """Return `--name value` words as a mapping; values are read as YAML scalars are."""
    import yaml

    pairs: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or not (equals or rest):
            parser.error(f"unknown argument: {name}")
        pairs[name[2:]] = yaml.safe_load(value if equals else rest.pop(0))
    return pairs
