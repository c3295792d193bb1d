"""The console put together: start with `app.py`."""
