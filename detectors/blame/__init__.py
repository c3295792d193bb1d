"""From the critical paths of some iterations to the devices that may have caused them, with probabilities.

Start at `causes.py`. `transfer_causes.py` tells NIC, link, switch and communicator apart, `standing_causes.py` finds
what was slow from the first iteration on, `what_if.py` asks how much time would come back.
"""
