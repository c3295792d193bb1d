"""From the critical paths of some iterations to the devices that may have caused them, with probabilities.

Start at `causes.py`; `work_causes.py` and `transfer_causes.py` explain one lane, `suspects.py` lists the kinds of
devices, `standing_causes.py` finds devices that were slow from the first iteration on, `what_if.py` computes the time
that would come back without one. Numbers are in `thresholds.py` and `likelihoods.py`.
"""
