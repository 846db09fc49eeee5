"""The smallest fleet that meets service-level objectives: ``python scripts/capacity.py --help``.

``slo`` says what an objective is and when seeds show that it is met, ``fleets`` what a size is,
``search`` finds the smallest, ``trials`` plays and keeps the episodes, ``model`` is the published
analytical estimate for two pools; ``command``, ``report`` and ``plots`` show it.
"""
