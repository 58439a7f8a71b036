"""What ships with the package is small, safe to load, and exact."""

from __future__ import annotations

from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path, quickstart_config
from exgrpo.tasks.chain import CHARACTERS


def test_the_base_policy_is_small_and_holds_no_pickle():
    files = [path for path in chain_base_path().iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".md"}
    assert 800_000 < AutoModelForCausalLM.from_pretrained(chain_base_path()).num_parameters() < 1_200_000


def test_the_tokenizer_gives_one_token_per_character_and_the_same_text_back():
    tokenizer = AutoTokenizer.from_pretrained(chain_base_path())
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert len(ids) == len(set(ids)) == len(CHARACTERS)
    assert tokenizer.decode(ids) == CHARACTERS
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == CHARACTERS
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_quick_start_configuration_ships():
    assert quickstart_config().read_text(encoding="utf-8").startswith("#")
