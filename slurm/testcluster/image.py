"""The image of a node: built once per suite, from a registry's base image or from the distribution's archive.

Its tag is a hash of all that it is made from: a change in the packages or the scripts builds a new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from testcluster import mounts, packages, state
from testcluster.engine import Docker
from testcluster.errors import ClusterError

Say = Callable[[str], None]
#: What the image is made from.
SOURCE = Path(__file__).resolve().parent.parent / "image"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: What Debian's own archive calls its releases; no other archive is the place to build a root from.
_RELEASES = frozenset({"bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"})
_BUILD_SECONDS = 900.0


def tag(suite: str) -> str:
    """Return the image's name for a Debian suite."""
    digest = hashlib.sha256(f"{suite} {platform.machine()}".encode())
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"unicron-test-cluster:{suite}-{digest.hexdigest()[:12]}"


def ensure(docker: Docker, suite: str, cluster: Path, say: Say) -> str:
    """Return the name of the image for `suite`; build it where it is not there yet."""
    name = tag(suite)
    if docker.try_run(["image", "inspect", name]).code == 0:
        return name
    pulled = docker.try_run(["pull", "--quiet", f"debian:{suite}-slim"], seconds=300.0)
    if pulled.code == 0:
        say(f"building the {suite} image on the registry's base image (once, about a minute)")
        # our own engine has no bridge, so the build uses this machine's network
        docker.run(
            ["build", "--network=host", "--build-arg", f"SUITE={suite}", "--tag", name, str(SOURCE)],
            seconds=_BUILD_SECONDS,
        )
        return name
    words = pulled.err.strip().splitlines() or ["no answer"]
    say(f"no base image can be pulled ({words[-1]})")
    _bootstrap(docker, suite, name, cluster, say)
    return name


def archive() -> str:
    """Return the Debian mirror that this machine's own package manager is set up with."""
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(COMPONENT)|$(RELEASE)|$(REPO_URI)",
        "Created-By: Packages",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        done = subprocess.CompletedProcess(command, 1, "", "")
    for line in done.stdout.splitlines():
        component, release, uri = line.split("|")
        # security and update archives have other releases ("bookworm-updates"), and lack the base system
        if component == "main" and release in _RELEASES:
            return uri
    raise ClusterError(
        "no Debian archive among the sources of apt on this machine",
        where="debootstrap",
        hint="Add one to apt's sources, or make base images available to the Docker engine.",
    )


@contextlib.contextmanager
def _network_settings() -> Iterator[dict[str, str]]:
    """Yield an environment in which wget uses apt's proxy and certificates."""
    environment = dict(os.environ)
    done = subprocess.run(
        ["apt-config", "dump", "--format", "%f=%v%n"], capture_output=True, text=True, timeout=60, check=False
    )
    settings = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    for scheme in ("http", "https"):
        proxy = settings.get(f"Acquire::{scheme}::Proxy", "")
        if proxy and proxy != "DIRECT":
            environment[f"{scheme}_proxy"] = proxy
    with tempfile.NamedTemporaryFile("w", prefix="wgetrc-") as file:
        authority = settings.get("Acquire::https::CaInfo") or os.environ.get("SSL_CERT_FILE", "")
        if authority:
            file.write(f"ca_certificate = {authority}\n")
            file.flush()
            environment["WGETRC"] = file.name
        yield environment


def _bootstrap(docker: Docker, suite: str, name: str, cluster: Path, say: Say) -> None:
    program = packages.program("debootstrap")
    if os.geteuid() != 0 or not program:
        raise ClusterError(
            "no base image can be pulled, and debootstrap needs root and the package debootstrap",
            where=f"image of {suite}",
        )
    mirror = archive()
    say(f"making the {suite} image from {mirror} by debootstrap (once, about a minute)")
    wanted = ",".join((SOURCE / "packages").read_text().split())
    place = _work_folder(cluster)
    place.mkdir(mode=0o700)
    try:
        root = place / "root"
        command = [program, "--variant=minbase", f"--include={wanted}", suite, str(root), mirror]
        if Path(_KEYRING).exists():
            command.insert(1, f"--keyring={_KEYRING}")
        with _network_settings() as environment:
            _run(command, environment={**environment, state.MARK: str(cluster)})
        for leftover in (
            *(root / "var/cache/apt/archives").glob("*.deb"),
            *(root / "var/lib/apt/lists").glob("*_*"),
        ):
            leftover.unlink()
        shutil.copytree(SOURCE, root / "opt/cluster")
        _run(
            ["chroot", str(root), "/bin/sh", "/opt/cluster/provision"],
            environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        _import(docker, root, name)
    finally:
        clear_work(cluster)


def _work_folder(cluster: Path) -> Path:
    # Not below /tmp, which may be mounted without devices or programs.
    return Path("/var/tmp") / f"unicron-image-{hashlib.sha256(str(cluster).encode()).hexdigest()[:12]}"


def clear_work(cluster: Path) -> None:
    """Remove what a build for the cluster in `cluster` left, whose processes are dead."""
    place = _work_folder(cluster)
    if place.exists():
        mounts.unmount_below([place])
        shutil.rmtree(place)


def _run(command: list[str], *, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"did not end within {_BUILD_SECONDS:g} s", where=command[0]) from None
    if done.returncode != 0:
        words = "\n    ".join(["", *done.stdout.splitlines()[-8:]])
        raise ClusterError(f"ended with {done.returncode}. Its last words:{words}", where=command[0])


def _import(docker: Docker, root: Path, name: str) -> None:
    with tempfile.TemporaryFile() as words:
        tar = subprocess.Popen(
            ["tar", "--directory", str(root), "--numeric-owner", "--create", "."],
            stdout=subprocess.PIPE,
            stderr=words,
        )
        load = subprocess.run(
            [packages.program("docker"), "import", "-", name],
            stdin=tar.stdout,
            env=docker.environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        assert tar.stdout is not None
        tar.stdout.close()
        if tar.wait() != 0 or load.returncode != 0:
            words.seek(0)
            raise ClusterError(
                f"{load.stderr}{words.read().decode(errors='replace')}".strip(), where="docker import"
            )
