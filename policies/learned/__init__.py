"""Learned routers: a permutation-equivariant network over (request, device) pairs."""
