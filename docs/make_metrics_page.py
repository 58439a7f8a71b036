"""Write docs/metrics.md from the table of metrics: python docs/make_metrics_page.py."""

from __future__ import annotations

from pathlib import Path

from exgrpo.train.telemetry import METRICS

PAGE = Path(__file__).parent / "metrics.md"


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Metrics",
        "",
        "Written by `docs/make_metrics_page.py` from the table in `src/exgrpo/train/telemetry.py`. A name that ends in",
        "`*` stands for several. What depends on the clock goes to `timing.jsonl`, everything else to `metrics.jsonl`;",
        "names are the same in every tracker that `report_to` names.",
        "",
        "| metric | unit | meaning | file |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        file = "timing" if metric.timing else "metrics"
        lines.append(f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {file} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
