"""A view of the file system in which an unprivileged account reaches the repository and its Python.

Both may lie below folders that only root may enter (a clone in /root). Nobody's folders are changed for that:
in a mount namespace of the cluster's own, each such folder is covered by an empty one that may be entered,
and only the sub-folders that are needed are shown in it at their own paths.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from testcluster import linux


@dataclass(slots=True)
class Cover:
    """One folder to cover, what to show again below it, and the symbolic links to make again (path: text)."""

    folder: str
    shown: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)


def _others_may(path: Path, bits: int) -> bool:
    return path.stat().st_mode & bits == bits


def _follow(path: Path) -> tuple[dict[str, str], Path]:
    """Return the symbolic links met on the way to `path`, and the real path."""
    links: dict[str, str] = {}
    parts = list(path.parts[1:])
    real = Path("/")
    while parts:
        step = real / parts.pop(0)
        if step.is_symlink() and len(links) < 64:
            text = os.readlink(step)
            links[str(step)] = text
            target = Path(os.path.normpath(real / text))
            parts = [*target.parts[1:], *parts]
            real = Path("/")
        else:
            real = step
    return links, real


def _first_closed(path: Path) -> Path | None:
    """Return the topmost folder on the way to `path`, itself included, that others may not enter."""
    for folder in [*reversed(path.parents), path]:
        if folder.is_dir() and not folder.is_symlink() and not _others_may(folder, stat.S_IXOTH):
            return folder
    return None


def plan(needed: Iterable[Path]) -> list[Cover]:
    """Return what must be covered so that everybody reaches the `needed` paths; often nothing."""
    covers: dict[Path, Cover] = {}
    links: dict[str, str] = {}
    reals: set[Path] = set()
    for path in needed:
        if path.exists():
            met, real = _follow(path.absolute())
            links |= met
            reals.add(real)
    for real in sorted(reals):
        closed = _first_closed(real)
        if closed is not None and not any(parent in reals for parent in real.parents):
            covers.setdefault(closed, Cover(str(closed))).shown.append(str(real))
    for link, text in sorted(links.items()):
        closed = _first_closed(Path(link).parent)
        if closed is not None:
            covers.setdefault(closed, Cover(str(closed))).links[link] = text
    return [covers[folder] for folder in sorted(covers)]


def needed_by_python(python: Path) -> list[Path]:
    """Return the paths that `python` runs from: its links, its prefixes and what it imports from."""
    code = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, *sys.path]))"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=30, check=True, cwd="/"
    )
    told = [Path(text) for text in json.loads(done.stdout) if text.startswith("/")]
    return [python, *told]


def places_of_python(python: Path, inside: Path) -> list[tuple[str, str]]:
    """Return what a container needs for running `python`: pairs of (path inside, what to show there).

    Parameters
    ----------
    python
        The interpreter, usually of a virtual environment.
    inside
        A folder that the container has anyway; what lies in it is left out.
    """
    code = (
        "import json, sys, sysconfig as s; v = s.get_config_var; "
        "print(json.dumps([sys.base_prefix, s.get_path('stdlib'), f\"{v('LIBDIR')}/{v('INSTSONAME')}\"]))"
    )
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True, cwd="/"
    )
    prefix, library, shared_object = json.loads(done.stdout)
    # /usr is the container's own: of a system Python only its own files are shown, not the whole prefix
    wanted = [library, shared_object] if prefix in ("/usr", "/usr/local") else [prefix]
    wanted += [path for path in needed_by_python(python) if str(path) not in ("/usr", "/usr/local")]
    places: dict[str, str] = {}
    for path in map(Path, wanted):
        if not path.exists():
            continue
        links, real = _follow(path.absolute())
        places[str(real)] = str(real)
        places |= {link: str(_follow(Path(link))[1]) for link in links}
    kept: list[tuple[str, str]] = []
    for target in sorted(places):  # a folder sorts before what is in it
        around = [inside, *(Path(done) for done, _ in kept)]
        if not any(Path(target).is_relative_to(folder) for folder in around):
            kept.append((target, places[target]))
    return kept


def unmount_below(folders: Iterable[Path]) -> None:
    """Unmount whatever a crashed program left mounted on or in these folders, innermost first."""
    places = [f"{folder}/" for folder in folders]
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4].encode().decode("unicode_escape") for line in file]
    for point in reversed(points):
        if any(f"{point}/".startswith(place) for place in places):
            command = ["umount", "--lazy", point]
            subprocess.run(command, check=False, capture_output=True, timeout=30)


def dump(covers: list[Cover]) -> str:
    """Write a plan as JSON."""
    return json.dumps([asdict(cover) for cover in covers])


def load(text: str) -> list[Cover]:
    """Read a plan that `dump` wrote."""
    return [Cover(**fields) for fields in json.loads(text)]


def _show(source: str, target: str) -> None:
    mode = os.stat(source).st_mode
    if not stat.S_ISDIR(mode):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            Path(target).touch()
        linux.bind_mount(source, target)
        return
    os.makedirs(target, exist_ok=True)
    if mode & 0o005 == 0o005:
        linux.bind_mount(source, target)
        return
    for entry in os.scandir(source):  # the folder itself is closed: show what is in it in an open one
        inner = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inner)
        elif entry.is_dir(follow_symlinks=False):
            os.makedirs(inner, exist_ok=True)
            linux.bind_mount(entry.path, inner)
        elif entry.is_file(follow_symlinks=False):
            Path(inner).touch()
            linux.bind_mount(entry.path, inner)


def apply(covers: list[Cover]) -> None:
    """Move this process into a mount namespace of its own and carry the plan out there (needs root)."""
    linux.new_private_mount_namespace()
    os.umask(0o022)
    for cover in covers:
        original = os.open(cover.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            linux.mount_tmpfs(cover.folder)
            for path in cover.shown:
                below = os.path.relpath(path, cover.folder)
                _show(os.path.normpath(f"/proc/self/fd/{original}/{below}"), path)
            for link, text in cover.links.items():
                os.makedirs(os.path.dirname(link), exist_ok=True)
                if not os.path.lexists(link):
                    os.symlink(text, link)
        finally:
            os.close(original)
