"""NCCL's RAS service, asked while a job runs: which collectives each rank has launched, and which ranks are gone."""
