"""Write docs/environment.md from the docstrings of the environments and wrappers.

Example:
    python scripts/build_docs.py            # write
    python scripts/build_docs.py --check    # exit 1 when the committed page is out of date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

from llmroute_env.env import LLMRouteEnv
from llmroute_env.vector import LLMRouteVectorEnv
from llmroute_env.wrappers import FlatObservation, OneRequestEnv

PAGE = Path(__file__).resolve().parents[1] / "docs" / "environment.md"

HEAD = """# LLMRoute-v0

<!-- Written by scripts/build_docs.py from the docstrings; edit those. -->

```python
import gymnasium as gym
import llmroute_env

env = gym.make("LLMRoute-v0", scenario="azure-conv-a100")
envs = gym.make_vec("LLMRoute-v0", num_envs=64, scenario="azure-conv-a100")
```

"""


def page() -> str:
    """Text of the page."""
    parts = [HEAD, _docstring(LLMRouteEnv)]
    for title, thing in (
        ("Vector environment", LLMRouteVectorEnv),
        ("One request at a time", OneRequestEnv),
        ("Flat observations", FlatObservation),
    ):
        parts.append(f"\n## {title}: `{thing.__name__}`\n\n{_docstring(thing)}")
    return "".join(parts)


def _docstring(thing: type) -> str:
    text = inspect.cleandoc(thing.__doc__ or "")
    lines = []
    rules = 0
    for line in text.splitlines():
        rule = line.startswith("====")
        if rule and rules % 3 == 0:  # a table of three rules keeps its shape as plain text
            lines.append("```text")
        # "Args:" and the like are Google's sections; a page has them in bold.
        lines.append(f"**{line[:-1]}**\n" if line in ("Args:", "Attributes:") else line)
        rules += rule
        if rule and rules % 3 == 0:
            lines.append("```")
    return "\n".join(_items(lines)) + "\n"


def _items(lines: list[str]) -> list[str]:
    """Turn the indented entries of a section into list items."""
    out: list[str] = []
    plain = False
    for line in lines:
        plain ^= line.startswith("```")
        if plain:
            out.append(line)
        elif line.startswith("    ") and not line.startswith("     ") and ": " in line:
            name, rest = line.strip().split(": ", 1)
            out.append(f"- `{name}`: {rest}")
        elif line.startswith("        "):
            out.append("  " + line.strip())
        else:
            out.append(line)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    text = page()
    if args.check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != text:
            print(f"{PAGE}: out of date, run python scripts/build_docs.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
