"""What runs where training runs: sources of operators and samples, and the agent that publishes them.

`publishing` is what all share. Sources: `torch_hook` (a training process), `node` (GPUs and NICs), `importers` (files
of other tools), `trace` (recordings), `simulator`. Training scripts need `irregulars.torch_comms` alone.
"""
