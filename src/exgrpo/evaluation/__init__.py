"""Generate, score, give an interval. Never imports train or experience."""
