"""Replay of Vidur's runs on this environment, and how far the two are apart."""
