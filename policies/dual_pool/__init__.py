"""Dual-pool token-budget routing (arXiv 2604.08075): `estimator`, `decision`, `router`."""
