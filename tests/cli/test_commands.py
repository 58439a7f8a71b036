"""The commands a newcomer types, run for real on a few steps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from exgrpo.assets import quickstart_config
from exgrpo.cli.main import main
from exgrpo.errors import ConfigError
from exgrpo.train.run_config import load_config, write_config

TINY = {
    "max_steps": 2,
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "chain_num_questions": 40,
    "chain_num_held_out": 12,
    "start_rule": "immediate",
}
TINY_WORDS = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    values = yaml.safe_load(quickstart_config().read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**values, **TINY, "output_dir": str(tmp_path / "run")}), encoding="utf-8")
    return path


def test_train_leaves_model_configuration_metrics_and_experience(config, tmp_path, capsys):
    assert main(["train", str(config), "--learning_rate", "3e-5"]) == 0
    run = tmp_path / "run"
    out = capsys.readouterr()
    assert out.out.strip() == str(run)
    assert len(out.err.splitlines()) >= 3
    assert {"model", "config.yaml", "metrics.jsonl", "timing.jsonl", "experience.sqlite"} <= {
        p.name for p in run.iterdir()
    }
    assert (run / "model" / "model.safetensors").exists()
    assert yaml.safe_load((run / "config.yaml").read_text())["learning_rate"] == 3e-5


def test_train_goes_on_from_the_last_checkpoint_where_asked_to(config, tmp_path, capsys):
    assert main(["train", str(config), "--resume"]) == 1
    assert "a checkpoint in" in capsys.readouterr().err
    saving = ["--save_strategy", "steps", "--save_steps", "1"]
    assert main(["train", str(config), *saving]) == 0
    assert main(["train", str(config), *saving]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["train", str(config), *saving, "--resume", "--max_steps", "3"]) == 0
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2, 3]


def test_the_resolved_configuration_is_read_back_as_it_was(config, tmp_path):
    first = load_config(config)
    write_config(first, tmp_path / "resolved.yaml")
    second = load_config(tmp_path / "resolved.yaml")
    assert (second.data, second.chain, second.verify) == (first.data, first.chain, first.verify)
    assert second.model == first.model
    assert second.training.to_dict() == first.training.to_dict()


def test_quickstart_measures_before_and_after_and_prints_json(tmp_path, capsys):
    run = tmp_path / "quick"
    assert main(["quickstart", "--json", "--output_dir", str(run), *TINY_WORDS]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 2
    for scores in (summary["before"], summary["after"]):
        assert 0 <= scores["pass_at_1"]["low"] <= scores["pass_at_1"]["value"] <= scores["pass_at_1"]["high"] <= 1
    assert summary["directory"] == str(run)


def test_quickstart_prints_a_table_and_where_the_files_are(tmp_path, capsys):
    run = tmp_path / "quick"
    assert main(["quickstart", "--output_dir", str(run), *TINY_WORDS]) == 0
    out = capsys.readouterr().out
    for words in ("Pass@1", "valid reasoning", "before", "after", str(run), "experience.sqlite", "metrics.jsonl"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--learning_rat", "1"], "learning_rate"),
        (["--replay_ratio", "1.5"], "[0, 1)"),
        (["--trajectory_selection", "lowest"], "lowest_entropy"),
        (["--num_generations", "1"], "at least 2"),
        (["--top_p", "0.9"], "top_p"),
        (["--model_name_or_path", ""], "chain-base"),
        (["--learning_rate", "fast"], "fast"),
    ],
)
def test_bad_words_get_one_clear_error_with_a_hint(config, capsys, words, says):
    assert main(["train", str(config), *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "hint: " in error
    assert says in error
    assert "Traceback" not in error


def test_an_unknown_key_in_the_file_is_answered_with_its_likely_name(config):
    config.write_text(config.read_text() + "replay_rato: 0.5\n")
    with pytest.raises(ConfigError, match="did you mean replay_ratio"):
        load_config(config)


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="hint"):
        load_config(path)


def test_a_missing_file_is_refused(capsys):
    assert main(["train", "nowhere.yaml"]) == 1
    assert "nowhere.yaml" in capsys.readouterr().err


def test_a_directory_with_a_run_is_not_written_over(config, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert main(["train", str(config)]) == 1
    assert "output_dir" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(("words", "shows"), [([], "quickstart"), (["data"], "check"), (["experience"], "verify")])
def test_without_a_command_the_help_is_shown(words, shows, capsys):
    assert main(words) == 2
    assert shows in capsys.readouterr().out


def test_a_command_without_overrides_refuses_unknown_words(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "a", "b", "--sede", "1"])
    assert stopped.value.code == 2
    assert "--sede" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        *("train", "quickstart", "data check", "eval", "compare"),
        *("experience verify", "experience backup", "experience rollback", "experience adopt"),
    ],
)
def test_each_command_explains_itself_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_importing_the_package_loads_no_torch():
    code = "import sys, exgrpo, exgrpo.experience, exgrpo.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_there():
    code = (
        "from exgrpo import ExGRPOConfig, ExGRPOTrainer, ExperienceReplay, ReplaySettings\n"
        "import exgrpo; assert set(exgrpo.__all__) <= set(dir(exgrpo)); exgrpo.__version__\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
