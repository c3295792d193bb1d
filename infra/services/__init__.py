"""Services of one machine: a broker, a database, each in a process of its own that ends with us.

Start at `service.py` and `child_process.py`.
"""
