"""Further sections of the report: kept rows, rows made anew, order, and one-line faults."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from llmroute_env.experiments.science import registry
from llmroute_env.experiments.science.reproduce import main

SECTION = """\
runs = []

def run(quick):
    runs.append(quick)
    return [{"policy": "lor", "n": 2 if quick else 10, "mean": 0.1 + 0.2, "note": "", "yes": True}]

def render(rows):
    return "## Extra\\n\\n" + "\\n".join(f"{r['policy']} {r['mean']!r} over {r['n']}" for r in rows)

def plot(rows, directory):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "extra.png").write_bytes(b"plot")

def line(rows):
    return f"**Extra:** {rows[0]['n']} seeds."
"""


@pytest.fixture
def extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A section that counts its runs."""
    path = tmp_path / "extra.py"
    path.write_text(SECTION, encoding="utf-8")
    module = ModuleType("extra")
    module.__file__ = str(path)
    exec(compile(SECTION, str(path), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "llmroute_env.experiments.science.extra", module)
    monkeypatch.setattr(registry, "SECTIONS", ("extra",))
    return module


def test_rows_are_kept_until_the_code_or_the_size_changes(extra: ModuleType, tmp_path: Path):
    out = tmp_path / "new" / "out"
    assert registry.rows_of("extra", out, quick=True, play=False) == []
    first = registry.rows_of("extra", out, quick=True)
    assert registry.rows_of("extra", out, quick=True) == first
    # Digits, truth values and empty words survive the file.
    assert first == [{"policy": "lor", "n": 2, "mean": 0.1 + 0.2, "note": "", "yes": True}]
    assert extra.runs == [True]
    assert registry.rows_of("extra", out, quick=False)[0]["n"] == 10
    assert registry.rows_of("extra", out, quick=False, play=False)[0]["n"] == 10
    assert extra.runs == [True, False]
    Path(str(extra.__file__)).write_text(SECTION + "# changed\n", encoding="utf-8")
    registry.rows_of("extra", out, quick=False)
    assert extra.runs == [True, False, False]


def test_pages_headlines_and_plots(extra: ModuleType, tmp_path: Path):
    found = registry.pages(tmp_path, tmp_path / "images", quick=True)
    assert found == {"extra": ["## Extra", "", "lor 0.30000000000000004 over 2", ""]}
    assert (tmp_path / "images" / "extra.png").is_file()
    assert registry.headlines(tmp_path, quick=True) == ["**Extra:** 2 seeds."]
    assert extra.runs == [True]


def test_one_section_alone_from_the_command_line(extra: ModuleType, tmp_path: Path, capsys):
    assert main(["--section", "extra", "--quick", "--out", str(tmp_path)]) == 0
    assert "over 2" in capsys.readouterr().out
    assert main(["--section", "other", "--out", str(tmp_path)]) == 2
    assert "section 'other': must be one of extra" in capsys.readouterr().err


@pytest.mark.parametrize("name", registry.SECTIONS)
def test_every_section_is_whole(name: str):
    module = registry.section(name)
    assert callable(module.run)
    assert callable(module.render)


def test_truth_values_that_some_rows_lack_are_numbers(extra: ModuleType, tmp_path: Path):
    extra.run = lambda quick: [{"policy": "a", "ok": True}, {"policy": "b"}]
    first, second = registry.rows_of("extra", tmp_path, quick=True)
    assert first["ok"] == 1.0
    assert second["ok"] != second["ok"]
