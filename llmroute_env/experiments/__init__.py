"""Paired experiments: run policies over seeds, and turn the records into tables and pictures.

* `runner`: policies × seeds in parallel, each episode one atomic record, resumable
* `records`: the files of a result directory
* `load`: the same scenario at another offered load, for sweeps
* `statistics`: bootstrap intervals, paired improvement over a baseline
* `table`, `plots` (`bar_plots`, `time_plots`, `style`), `tensorboard`: views of the same records
* `compare`, `cli`: the command line of ``scripts/compare.py``
"""
