"""Reproduction of the paper, attribution of gains, and the arena of all policies."""
