"""Write docs/metrics.md and docs/settings.md from the code that they describe: python docs/make_pages.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from exgrpo.tasks.chain import ChainSettings
from exgrpo.tasks.settings import DataSettings
from exgrpo.train import ExGRPOConfig
from exgrpo.train.telemetry import METRICS
from exgrpo.verify import VerifySettings

DOCS = Path(__file__).parent


def metrics_page() -> str:
    """Return the page of all metrics."""
    lines = [
        "# Metrics",
        "",
        "Written by `docs/make_pages.py` from the table in `src/exgrpo/train/telemetry.py`. A name that ends in `*`",
        "stands for several. What depends on the clock goes to `timing.jsonl`, everything else to `metrics.jsonl`;",
        "names are the same in every tracker that `report_to` names.",
        "",
        "| metric | unit | meaning | file |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        file = "timing" if metric.timing else "metrics"
        lines.append(f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {file} |")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Return the page of the settings that this package adds to TRL's, or gives another default."""
    parts = {
        "Training and replay": ExGRPOConfig,
        "Questions": DataSettings,
        "Verification and rewards": VerifySettings,
        "The chain task": ChainSettings,
    }
    own = {name for cls in parts.values() for name in cls.__annotations__}
    lines = [
        "# Settings",
        "",
        "Written by `docs/make_pages.py` from the code. These can stand in a configuration file or on the command",
        "line, as can every argument of `trl.GRPOConfig` and `trl.ModelConfig`, which TRL documents.",
    ]
    for title, cls in parts.items():
        lines += ["", f"## {title}", "", "| setting | default | meaning |", "|---|---|---|"]
        lines += [row(field) for field in dataclasses.fields(cls) if field.name in own]
    return "\n".join(lines) + "\n"


def row(field: dataclasses.Field[Any]) -> str:
    """Return one setting as a row."""
    return f"| `{field.name}` | `{field.default}` | {field.metadata['help'].replace('|', '/')} |"


PAGES = {"metrics.md": metrics_page, "settings.md": settings_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
