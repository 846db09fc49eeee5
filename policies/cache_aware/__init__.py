"""Routers that know what is cached where: `scores`, `decision`, `routers`, `lmetric`."""
