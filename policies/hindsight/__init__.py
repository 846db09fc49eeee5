"""Hindsight: bounds on what any routing of an episode can earn, clairvoyant plans, instances.

``hindsight.bound(env.unwrapped.scenario, env.unwrapped.requests)`` bounds the episode of an
environment; ``.share(reward)`` is what a policy reached of it. The proof is in `bounds`.
"""

from policies.hindsight.bounds import Bound, bound, bound_and_order
from policies.hindsight.exports import export
from policies.hindsight.gaps import gap_row, gap_table, summarize_gaps
from policies.hindsight.instance import HindsightError, Instance
from policies.hindsight.plans import Plan, plan
from policies.hindsight.time_indexed import Program, program, solve

__all__ = [
    "Bound",
    "HindsightError",
    "Instance",
    "Plan",
    "Program",
    "bound",
    "bound_and_order",
    "export",
    "gap_row",
    "gap_table",
    "plan",
    "program",
    "solve",
    "summarize_gaps",
]
