"""Findings of bandwidth samples: how NICs are used, whose rate is capped, whose is steady.

Start at `behaviour_patterns.py`; `peak_caps.py` and `steadiness.py` turn patterns and peaks into odds for a device.
"""
