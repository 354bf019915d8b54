"""Zeitgeist, the example of the MillWheel paper: which queries spike or dip against what a model learned of them?

- `events`: what goes in and what is looked for
- `clock`: the accelerated clock, on which a second is a simulated hour
- `traffic`: a seeded generator of queries, with anomalies at known places
- `computations`: counts per second, the model, the detector
- `topology`: how they are wired
- `score`: what was found against the truth
- `picture`: the same for the eye
"""
