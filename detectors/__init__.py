"""All judgement: arrays in, verdicts out; no clock, no network, no thread.

Rooms in the order in which an iteration passes them: `irregular` finds it, `path` follows it back to its first cause,
`nics` looks at bandwidth, `blame` says whose fault it is, `hang` who never came, `verdicts` what is told and for how
long. `judging` leads an iteration through all of them: start at `judging/iteration_judge.py`.
"""
