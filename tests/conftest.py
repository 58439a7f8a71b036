"""What holds for every test: no test depends on how fast the machine is, nor on what it can reach."""

from __future__ import annotations

import os

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# Small models gain nothing from a second thread, and lose much where another process wants it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that would download something fails at once instead of waiting for a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

hypothesis_settings.register_profile(
    "exgrpo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),  # a build must not fail for an example that a later one does not try
)
hypothesis_settings.load_profile("exgrpo")
