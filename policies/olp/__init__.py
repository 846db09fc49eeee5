"""Online linear programming: bid prices for batch slots and KV memory."""

from policies.olp.router import OnlineLp

__all__ = ["OnlineLp"]
