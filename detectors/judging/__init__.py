"""Leads each iteration of a job through the rooms: is it irregular, where did the time go, who is to blame.

Start at `iteration_judge.py`. `suspicion.py` finds why an iteration is suspect, `investigation.py` where time went;
`operator_reader.py` fetches the operators for that. `standing_review.py` looks now and then at iterations that seem
healthy.
"""
