"""Routing policies: load balancing, length-aware queues, online-LP bid prices, learned agents."""

from policies.base import Policy
from policies.registry import available, make, register
from policies.spec import RouterSpec

__all__ = ["Policy", "RouterSpec", "available", "make", "register"]
