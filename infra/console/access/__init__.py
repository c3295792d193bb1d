"""Who may look: tokens and sessions, proxies that name people, the name that a browser uses for us. Start with `gate.py`."""
