"""Who may look: tokens, sessions, proxies that name people, names that browsers use. Start with `gate.py`."""
