"""Functions that users might write, good and bad."""

from __future__ import annotations

import os
import time

from exgrpo.types import Judgement


def by_length(response, answer, **columns):
    return len(response) == int(answer) + columns.get("extra", 0)


by_length.version = "3"


def graded(response, answer, **_):
    return float(response)


def whole(response, answer, **_):
    return Judgement("wrong", 0.25, "x", "said so")


def nothing(response, answer, **_):
    return None


def hostile(response, answer, **_):
    """Do what the response says."""
    if response == "hang":
        time.sleep(1000)
    if response == "spin":
        while True:
            pass
    if response == "raise":
        raise KeyError("no such thing")
    if response == "die":
        os._exit(7)
    if response == "eat":
        return bool(bytearray(8 * 2**30))
    return response == answer


def pid(response, answer, **_):
    return Judgement("correct", 1.0, str(os.getpid()))


not_callable = 5
