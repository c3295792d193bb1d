"""NCCL's RAS service, asked while a job runs or read from saved answers: hangs without a hook. Start in `source`."""
