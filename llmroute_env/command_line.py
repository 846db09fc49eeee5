"""What the project's command lines share."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Faults end in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Print the fault to stderr and exit with status 2."""
        self.exit(2, f"error: {message}\n")
