"""All judgement: arrays in, verdicts out; no clock, no network, no thread.

Rooms in the order in which an iteration passes them: `irregular` finds it, `path` follows it back to its first cause,
`nics` looks at bandwidth, `blame` finds whose fault it is, `verdicts` decides when to accuse, and for how long.
`judging` leads an iteration through all of them: start at `judging/iteration_judge.py`.
"""
