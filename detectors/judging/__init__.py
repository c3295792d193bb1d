"""Leads each iteration of a job through the rooms: is it irregular, where did the time go, who is to blame.

Start at `iteration_judge.py`. `reading/` fetches the operators that the walk needs, `standing_review.py` looks now
and then at iterations that seem healthy.
"""
