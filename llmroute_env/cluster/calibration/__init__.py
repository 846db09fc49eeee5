"""Fit the timing model from profile CSVs, in the format of Vidur's published A100 profiles.

``facts`` what no profile tells (architectures, memory, overhead), ``csvs`` reading and checking,
``fitting`` the fits and their held-out errors, ``build`` one profile from all of it, ``files`` the
YAML, ``report`` what the script prints.
"""

from __future__ import annotations

from llmroute_env.cluster.calibration.build import Calibration, calibrate
from llmroute_env.cluster.calibration.files import differences, existing, write
from llmroute_env.cluster.calibration.report import print_report

__all__ = ["Calibration", "calibrate", "differences", "existing", "print_report", "write"]
