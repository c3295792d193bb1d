"""What starts and wires things: the command line, settings, services for one machine, docs.

Start at `cli.py`, then `commands`. `runs` puts the parts together; `settings.py` and `wiring.py` say how.
"""
