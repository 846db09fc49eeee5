"""The examples on docs/workloads.md are what the project accepts, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from llmroute_env.scenario import Scenario
from llmroute_env.workload.traces import FORMATS

PAGE = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_pages_examples_load(text: str) -> None:
    example = yaml.safe_load(text)
    data = Scenario.load("paper-stable").to_dict()
    data["workload"].update(example.pop("workload"))
    Scenario.load({**data, **example})


def test_there_are_examples_of_all_parts() -> None:
    keys = {key for text in EXAMPLES for key in yaml.safe_load(text)["workload"]}
    assert keys == {"arrivals", "lengths", "trace", "sessions", "text"}
    (python,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(python, "docs/workloads.md", "exec"), {})


def test_every_format_has_its_row() -> None:
    for name, entry in FORMATS.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | ")]
        if entry.source.startswith("https"):
            assert f"]({entry.source})" in row
        if not entry.is_json:
            assert f"`{','.join(entry.columns)}`" in row
