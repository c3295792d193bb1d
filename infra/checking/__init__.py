"""Judges a recording again under changes that must alter no verdict.

Start at `check.py`; `changes.py` names all changes.
"""
