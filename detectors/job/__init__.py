"""What is known of a job: where its ranks live, which way traffic goes, what clocks can say.

Start at `lanes.py`: it explains, with an example, the lane, which is the word that all rooms above share.
`topology.py` says which lanes a slow device would slow down.
"""
