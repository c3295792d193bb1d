"""Facts of a job: where its ranks live, which way traffic goes, how far its hosts' clocks are apart.

Start at `lanes.py`: it explains, with an example, the lane, which is the word that all rooms above share.
`topology.py` knows which lanes a slow device would slow down.
"""
