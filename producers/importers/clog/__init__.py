"""Logs of TorchComms' hook ``clog``: text, one file a rank.

Start at `lines.py` (one log); `looking.py` tells what its times are worth, `groups.py` who is in which communicator,
`job.py` joins the logs of a job and says which calls stand, `live.py` reads them as they grow.
"""
