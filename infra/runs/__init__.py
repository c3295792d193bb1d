"""The parts put together: an analysis, a node's agent, a run, a backtest, a broker and a database for one machine.

Start at `analysis.py`: both hops over a trace directory, in one process. `local_services.py` starts all services.
"""
