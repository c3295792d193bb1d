"""What is known of a job: where its ranks live, which way traffic goes, what clocks can say.

`lanes.py` defines the lane, the word that all rooms above share: where time is spent. `topology.py` says which lanes
a slow device would slow down. Start with these two.
"""
