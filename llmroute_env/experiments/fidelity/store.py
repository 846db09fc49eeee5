"""Finished replays on disk: one CSV each, with the digest of what it was made from.

    DIR/replays/<variant>/<run>.csv      first_s and finish_s of each request
    DIR/replays/<variant>/<run>.digest   of the requests and of the profiles

A command that is run again plays what is missing. A replay of other inputs is never overwritten
unasked.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd

from llmroute_env.experiments.fidelity.replay import PERIOD_S, replay, write_profiles
from llmroute_env.experiments.fidelity.runs import CLUSTER, Run
from llmroute_env.experiments.fidelity.variants import Variant


class Store:
    """Replays under ``folder``.

    Args:
        folder: of the command; made when absent.
        overwrite: replace replays of other inputs.
    """

    def __init__(self, folder: Path, *, overwrite: bool = False) -> None:
        self.folder = folder
        self.overwrite = overwrite

    def check(self, run: Run, variant: Variant) -> bool:
        """Whether the replay is there.

        Raises:
            ValueError: one of other inputs is there.
        """
        path, mark = self._paths(run, variant)
        if not path.is_file() or not mark.is_file():
            return False
        if mark.read_text(encoding="utf-8").strip() == digest(run, variant):
            return True
        if not self.overwrite:
            raise ValueError(
                f"{path} is a replay of other inputs: choose another --out, or --overwrite"
            )
        return False

    def get(self, run: Run, variant: Variant) -> pd.DataFrame:
        """The replay, played if it is not there; columns as of `replay`."""
        path, mark = self._paths(run, variant)
        if not self.check(run, variant):
            files = write_profiles(variant, self.folder / "profiles")
            frame = replay(run, *files)
            path.parent.mkdir(parents=True, exist_ok=True)
            mark.unlink(missing_ok=True)  # the mark says "done", so it goes first and comes last
            frame.to_csv(path, index=False)
            mark.write_text(digest(run, variant) + "\n", encoding="utf-8")
        return pd.read_csv(path)

    def _paths(self, run: Run, variant: Variant) -> tuple[Path, Path]:
        stem = self.folder / "replays" / variant.key / run.name
        return stem.with_name(f"{run.name}.csv"), stem.with_name(f"{run.name}.digest")


def digest(run: Run, variant: Variant) -> str:
    """Of everything that a replay depends on, except the code."""
    device, model = variant.profiles
    made = hashlib.sha256(run.requests.to_csv(index=False).encode())
    for part in (CLUSTER, PERIOD_S, device.model_dump(mode="json"), model.model_dump(mode="json")):
        made.update(json.dumps(part, sort_keys=True).encode())
    return made.hexdigest()[:16]
