"""Self-healing training of large language models inside one Slurm allocation."""

__version__ = "0.1.0"
