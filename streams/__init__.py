"""The worker: two hops that turn a job's operators into verdicts, between topics and database.

`rank_hop` reduces the rows of each rank to one evidence row an iteration; `job_hop` gathers the evidence of all ranks
and judges it. The other packages move bytes, keep states and watch over both. Start at `worker/running.py`.
"""
