"""Speed of the environments, of whole episodes and of each policy's decision.

* `model`, `runner`: measures, and how they are timed
* `stepping`, `vector`, `episodes`, `decisions`, `growth`, `scale`, `start`: what is measured
* `backlog`: the observations on which decisions are timed
* `targets`: what is asked for, and what others have published
* `report`, `table`, `plot`, `cli`: JSON, comparison with an earlier run, terminal, pictures
"""
