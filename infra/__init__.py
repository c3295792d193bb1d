"""What starts and wires things: the command line, settings, services for one machine, docs.

Start at `cli.py`; each command is a file in `commands`. `runs` puts the parts together, `configuration` says how,
`services` starts brokers and databases, `checking` judges recordings again under changes.
"""
