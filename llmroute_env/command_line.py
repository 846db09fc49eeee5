"""What the project's command lines share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Faults end in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print the fault to stderr and exit with status 2."""
        self.exit(2, f"error: {message}\n")


def at_least(least: int) -> Callable[[str], int]:
    """A type of argument: a whole number of at least ``least``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
        return value

    return parse


def cores() -> int:
    """Cores that this process may use, which a container may have restricted."""
    from joblib import cpu_count  # not before something is played: it takes a while to import

    return int(cpu_count())
