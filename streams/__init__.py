"""What travels on the bus, and the two hops that turn a job's operators into verdicts.

`messages` is what travels. `rank_hop` reduces what one rank sends to one evidence row an iteration, `job_hop` gathers
the rows of all ranks and has them judged. `kafka` and `worker` are the shell around both. Start at
`messages/records.py`.
"""
