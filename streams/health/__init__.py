"""How a worker outlasts what fails around it, and ends when it can't; start at `broker_watch`."""
