"""Channels that ship, a file each. Start at `webhook.py`; `http_post.py` is shared by those over HTTP."""
