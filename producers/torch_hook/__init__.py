"""Logs the operators of a training process.

Start at `session.py`. In the order of the data: `hooks` see operators and write them into a ring; `source.py` makes
batches of its rows; `exporters.py` writes them into a trace directory, to the agent's socket or to Kafka.
`agent_socket.py` is the agent's end of the socket, `trace_parts.py` joins the files of all ranks.
"""
