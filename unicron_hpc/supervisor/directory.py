"""Where each agent listens: one small file per agent in the run folder, so that all find each other."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

AGENTS = "agents"


def announce(run_folder: Path, node: str, address: str) -> None:
    """Write this agent's address (whole or not at all)."""
    folder = run_folder / AGENTS
    folder.mkdir(mode=0o700, exist_ok=True)
    temporary = folder / f".{node}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"node": node, "address": address, "pid": os.getpid(), "host": socket.gethostname()}, file)
    os.replace(temporary, folder / f"{node}.json")


def addresses(run_folder: Path) -> dict[str, str]:
    """Addresses of the agents that have announced themselves so far."""
    found: dict[str, str] = {}
    try:
        entries = list((run_folder / AGENTS).iterdir())
    except FileNotFoundError:
        return found
    for entry in entries:
        if entry.suffix == ".json" and not entry.name.startswith("."):
            try:
                content = json.loads(entry.read_text())
                found[str(content["node"])] = str(content["address"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being replaced right now; the next look finds it
    return found
