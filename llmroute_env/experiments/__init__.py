"""Paired experiments: run policies over seeds, and turn the records into tables and pictures.

* `runner`: policies × seeds in parallel, each episode one atomic record, resumable
* `records`: the files of a result directory
* `statistics`: bootstrap intervals, paired improvement over a baseline
* `table`, `plots`, `tensorboard`: three views of the same records
"""
