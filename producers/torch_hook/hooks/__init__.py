"""Hooks that see operators inside of torch: native, in Python, or in front of the dispatcher.

`session.choose_hook` takes the native one (`hook.cpp`, by `native_library.py`) where it was built.
`recording_hook.py` is the base of the other two; `ring.py` has the form of the rows for all.
"""
