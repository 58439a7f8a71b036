"""Write the sample of schema version 1 that later versions must open: python -m tests.data.make_experience_v1."""

from __future__ import annotations

from pathlib import Path

from exgrpo.experience import ExperienceReplay
from tests.experience.helpers import IDENTITY, commit, group, plan_of, settings

PATH = Path(__file__).parent / "experience-v1.sqlite"


def main() -> None:
    """Three steps: successes, a retirement, four replays."""
    PATH.unlink(missing_ok=True)
    with ExperienceReplay.open(PATH, settings(), identity=IDENTITY, seed=0) as replay:
        commit(replay, *[group(f"q{n}", 1 + n % 3, first_id=10 * n) for n in range(9)])
        commit(replay, group("q0", 4, first_id=200))
        plan = plan_of(replay, 3, 8)
        groups = [group(item.experience.question_id, 0, replayed=item.experience.id) for item in plan.replays]
        replay.commit(3, groups, plan)
    PATH.with_name(PATH.name + ".lock").unlink()


if __name__ == "__main__":
    main()
