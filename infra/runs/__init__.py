"""The parts put together: an analysis, a node's agent, a simulated or a live run.

Start at `analysis.py`: both hops over a trace directory, in one process.
"""
