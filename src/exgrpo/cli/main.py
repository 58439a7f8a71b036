"""The command line: parse, call one function, print."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version

from exgrpo.errors import ExGRPOError

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


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for an error of ours, 2 for wrong words on the line."""
    parser = _parser()
    arguments, overrides = parser.parse_known_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 2
    try:
        return int(arguments.run(arguments, overrides))
    except ExGRPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="exgrpo", description="Reinforcement learning of reasoning models that learn from their own experience."
    )
    parser.add_argument("--version", action="version", version=f"exgrpo {version('exgrpo')}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    train = _add(commands, "train", "train a model as a configuration says", TRAIN_EXAMPLES)
    train.add_argument("config", help="YAML file with any argument of ExGRPOConfig, TRL's ModelConfig and the task")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in output_dir")
    train.set_defaults(run=_train)
    quickstart = _add(
        commands, "quickstart", "watch a small model learn from its own successes, in minutes", QUICKSTART_EXAMPLES
    )
    quickstart.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")
    quickstart.set_defaults(run=_quickstart)
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, examples: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}. Any other --name value overrides the configuration.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


# torch and transformers take seconds to import: only the commands that need them do.


def _train(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.run import load_config, train

    print(train(load_config(arguments.config, overrides), resume=arguments.resume))
    return 0


def _quickstart(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from exgrpo.train.quickstart import quickstart

    summary = quickstart(overrides)
    print(json.dumps(summary.as_dict(), indent=2) if arguments.json else summary.as_text())
    return 0
