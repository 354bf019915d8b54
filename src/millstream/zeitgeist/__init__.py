"""Zeitgeist, the example of the MillWheel paper: which queries spike or dip against what a model learned of them?

    events.py        what goes in and what is looked for: queries, anomalies
    clock.py         the accelerated clock: a second is a simulated hour
    traffic.py       a seeded generator of queries, with anomalies at known places
    computations.py  counts per second, the model, the detector
    topology.py      how they are wired
    score.py         what was found against the truth
    picture.py       the same for the eye
"""
