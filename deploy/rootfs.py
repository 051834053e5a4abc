"""Build what deploy/Dockerfile builds without a container engine, as root on Debian: ``python deploy/rootfs.py FOLDER``.

The base image is made by debootstrap (Debian 12 with its own Python 3.11). Every step after FROM is read from the Dockerfile:
RUN in a chroot without a network, COPY from this repository or from the stage before. ``sandbox`` then gives the command
line that runs something in the result as an engine would: read-only root, the image's user, no capabilities, own volumes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3.11", "python3.11-venv", "python3-distutils")


def steps(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Instructions and their arguments, lines that go on joined.

    >>> list(steps("FROM a AS b\\nRUN one \\\\\\n && two"))
    [('FROM', 'a AS b'), ('RUN', 'one  && two')]
    """
    text = re.sub(r"\\\n", "", "".join(x for x in dockerfile.splitlines(keepends=True) if not x.startswith("#")))
    for line in text.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def base(folder: Path) -> Path:
    """Make the base once: a small Debian with Python, under the names that the official image has."""
    if not (folder / "usr" / "local" / "bin" / "python").is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder, MIRROR], check=True)
        install = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {' '.join(PACKAGES)}"
        chroot(
            folder, install, {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, net=True
        )
        shutil.rmtree(folder / "var" / "lib" / "apt" / "lists")
        (folder / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3.11")
    return folder


def chroot(root: Path, script: str, env: Mapping[str, str], *, net: bool = False) -> None:
    """Run one RUN step."""
    apart = ["unshare", "--mount", *([] if net else ["--net"])]
    subprocess.run([*apart, "chroot", root, "/bin/sh", "-ec", script], env=dict(env), check=True)


def build(folder: Path) -> Path:
    """Build the last stage of the Dockerfile in FOLDER/image; its settings are in FOLDER/image.json."""
    os.umask(0o022)
    folder.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Path] = {}
    root, config = folder / "image", dict[str, Any]()
    for word, rest in steps((HERE / "Dockerfile").read_text()):
        print(f"{word} {rest}"[:110], flush=True)
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            root = stages[name] = folder / name
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run(["cp", "-a", "--reflink=auto", base(folder / "base"), root], check=True)
            config = {"env": {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}, "user": "0:0", "workdir": "/"}
        elif word == "RUN":
            chroot(root, rest, config["env"])
        elif word == "COPY":
            *options, source, target = rest.split()
            stage = next((o.removeprefix("--from=") for o in options), "")
            origin = (stages[stage] / source.lstrip("/")) if stage else HERE.parent / source
            shutil.copytree(origin, root / target.lstrip("/"), symlinks=True, dirs_exist_ok=True)
        elif word == "ENV":
            config["env"] |= dict(x.partition("=")[::2] for x in shlex.split(rest))
        elif word in ("USER", "WORKDIR", "VOLUME"):
            config[word.lower()] = rest
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.lower()] = json.loads(rest)
        else:
            raise SystemExit(f"deploy/Dockerfile: {word} is not known here")
    for name in ("hosts", "hostname", "resolv.conf"):  # an engine mounts its own over them
        (root / "etc" / name).unlink(missing_ok=True)
        (root / "etc" / name).touch()
    (folder / "image.json").write_text(json.dumps(config, indent=1))
    return root


def sandbox(
    folder: Path,
    command: Sequence[str],
    *,
    volumes: Mapping[str, Path],
    env: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> list[str]:
    """The command line that runs a command in the image: bubblewrap for the file system, setpriv for the user."""
    config = json.loads((folder / "image.json").read_text())
    user, _, group = config["user"].partition(":")
    words = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-uts", "--clearenv"]
    words += ["--ro-bind", str(folder / "image"), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"]
    words += ["--perms", "0755", "--dir", "/run/secrets"]
    words += ["--perms", "1777", "--tmpfs", "/tmp"]
    for place, path in volumes.items():
        words += ["--bind", str(path), place]
    for place, path in (files or {}).items():
        words += ["--ro-bind", str(path), place]
    for name, value in {**config["env"], **(env or {})}.items():
        words += ["--setenv", name, value]
    words += ["--chdir", config["workdir"], "/usr/bin/setpriv", "--reuid", user, "--regid", group, "--clear-groups"]
    return [*words, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *command]


if __name__ == "__main__":
    if len(sys.argv) != 2 or os.geteuid() != 0:
        raise SystemExit("as root: python deploy/rootfs.py FOLDER")
    print(build(Path(sys.argv[1]).resolve()))
