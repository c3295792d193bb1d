"""One worker process: the Faust app, its parts, its start and its end.

Start at `running.py`, then `app.py`. Only this room and `streams/faust_driver` know Faust.
"""
