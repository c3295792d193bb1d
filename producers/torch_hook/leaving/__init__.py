"""How records leave the training process.

Start at `exits.py`; `agent_socket.py` is the agent's end of the local socket, `trace_parts.py` joins files of all
ranks.
"""
