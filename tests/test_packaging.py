"""What is installed: a wheel that works away from the repository, and a light import."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


def run(code: str, *, cwd: Path, first: Path = REPOSITORY) -> Any:
    """Run ``code`` in a new interpreter with ``first`` at the head of its path; JSON it prints."""
    program = f"import sys; sys.path.insert(0, {str(first)!r})\n{code}"
    # -P: the current folder is not on the path
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the pinned backend and without a network."""
    for module in ("build", "hatchling"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (the dev extra has it)")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_both_packages_and_every_config(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, prefix in (("llmroute_env", ""), ("policies", ""), ("configs", "llmroute_env/")):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{prefix}{path.relative_to(REPOSITORY).as_posix()}" in names
    assert {"llmroute_env/py.typed", "policies/py.typed"} <= names
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"llmroute_env", "policies"}
    assert wheel.stat().st_size < 2_000_000


def test_the_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = run(
        """
import json
import gymnasium as gym
import llmroute_env, policies
env = gym.make("LLMRoute-v0", scenario="azure-conv-a100")
policy = policies.make("round_robin", env)
observation, info = env.reset(seed=0)
action, _ = policy.predict(observation)
print(json.dumps({
    "files": [llmroute_env.__file__, policies.__file__],
    "scenarios": list(llmroute_env.list_scenarios()),
    "legal": bool(env.action_space.contains(action)),
}))
""",
        cwd=elsewhere,
        first=site,
    )
    assert all(Path(name).is_relative_to(site) for name in found["files"])
    here = sorted(path.stem for path in (REPOSITORY / "configs/scenarios").glob("*.yaml"))
    assert sorted(found["scenarios"]) == here
    assert found["legal"]


def test_the_command_compares_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (entry,) = tmp_path.glob("*.dist-info/entry_points.txt")
    assert "llmroute-compare = llmroute_env.experiments.compare:main" in entry.read_text()


HEAVY = ("torch", "stable_baselines3", "matplotlib", "PIL", "tensorboard", "ray")


def test_importing_and_making_an_environment_needs_no_extra(tmp_path: Path) -> None:
    loaded = run(
        f"""
import json
import gymnasium as gym
import llmroute_env, llmroute_env.wrappers, llmroute_env.evaluation, policies
policies.available()
gym.make("LLMRoute-v0", scenario="paper-stable").reset(seed=0)
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
""",
        cwd=tmp_path,
    )
    assert loaded == []


def test_registering_loads_no_compiler(tmp_path: Path) -> None:
    code = """
import json
import llmroute_env
print(json.dumps([name for name in ("numba", "pandas", "scipy") if name in sys.modules]))
"""
    assert run(code, cwd=tmp_path) == []


def metadata() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def test_every_requirement_is_pinned() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.!]+", pin) for pin in pins), pins
    names = {name_of(pin) for pin in pins}
    project = metadata()
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert {name_of(item) for item in wanted} <= names
    assert not any(name.startswith(("nvidia", "cuda", "triton")) for name in names)


def test_one_version_everywhere() -> None:
    version = metadata()["version"]
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation
    import llmroute_env

    assert llmroute_env.__version__ == version


def test_only_the_extra_needs_torch() -> None:
    project = metadata()
    extras = project["optional-dependencies"]
    with_torch = [
        extra
        for extra, items in extras.items()
        if {"torch", "stable-baselines3"} & set(map(name_of, items))
    ]
    assert with_torch == ["rl"]
    assert "torch" not in map(name_of, project["dependencies"])
