"""Pages that describe the code are written from it, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def load_generator():
    spec = importlib.util.spec_from_file_location("make_pages", ROOT / "docs" / "make_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["metrics.md", "settings.md"])
def test_generated_pages_are_up_to_date(name):
    expected = load_generator().PAGES[name]()
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == expected, "run python docs/make_pages.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_tree_in_the_readme_names_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text[text.index("src/exgrpo/") : text.index("configs/ examples/")]
    names = set(re.findall(r"[a-z_]+\.py", tree))
    there = {path.name for path in (ROOT / "src").rglob("*.py")}
    assert names <= there
    assert there - names <= {"__init__.py", "__main__.py"} | UNNAMED


# Rooms that the tree names as a whole.
UNNAMED = {
    *(
        path.name
        for room in ("objective", "verify", "evaluation", "cli")
        for path in (ROOT / "src/exgrpo" / room).glob("*.py")
    )
}


def test_the_tests_that_the_reliability_page_names_exist():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 20
    assert named <= set(re.findall(r"def (test_\w+)", written))
