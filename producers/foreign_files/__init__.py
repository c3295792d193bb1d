"""What the importers share: files, names of operators, process groups, and what comes out.

Start at `imported.py`.
"""
