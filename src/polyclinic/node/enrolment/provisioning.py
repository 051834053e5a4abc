"""FLARE's own enrolment commands, run for the user: ``nvflare cert request``, ``cert approve`` and ``package``.

They make the TLS key and the request at the site, sign it at the coordinator, and assemble the startup kit at the site.
What they do not do is ours (docs/dev/decisions/0008): bind the signing key, carry the files, refuse code. They write an audit
note under the home folder; here that is inside our own folder. Pinned to nvflare 2.9.0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.node.enrolment.folders import private, write_json
from polyclinic.node.flare_package import need_flare

DAYS: Final = 730  # validity of a site's certificate
MEMBERS: Final = 8  # files in a request; an honest one has 3
MEMBER: Final = 16_384  # bytes of one; an honest one has 1 kB


def nvflare(*arguments: str, home: Path) -> str:
    """Run one of FLARE's commands in this process; its own error becomes ours."""
    need_flare()
    from nvflare.tool.cert.cert_cli import def_cert_cli_parser, handle_cert_cmd
    from nvflare.tool.package.package_cli import def_package_cli_parser, handle_package_cmd

    parser = argparse.ArgumentParser(prog="nvflare", exit_on_error=False)
    commands = parser.add_subparsers(dest="sub_command")
    def_cert_cli_parser(commands)
    def_package_cli_parser(commands)
    out, err = io.StringIO(), io.StringIO()
    try:
        with _at_home(home), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            args = parser.parse_args(list(arguments))
            (handle_cert_cmd if arguments[0] == "cert" else handle_package_cmd)(args)
    except SystemExit as e:
        if e.code not in (0, None):
            said = [x.strip() for x in (err.getvalue() + out.getvalue()).splitlines() if x.strip()]
            raise ConfigError(f"FLARE refused ({' '.join(arguments[:2])})", faults=said[:5]) from None
    _mine(home)
    return out.getvalue()


@contextlib.contextmanager
def _at_home(home: Path) -> Iterator[None]:
    """FLARE notes what it did under ``~``, and looks at the program's own arguments: give it others for a moment."""
    before, argv, umask = os.environ.get("HOME"), sys.argv, os.umask(0o077)
    os.environ["HOME"], sys.argv = str(private(home).resolve()), ["nvflare"]
    try:
        yield
    finally:
        os.umask(umask)
        sys.argv = argv
        if before is None:
            os.environ.pop("HOME", None)
        else:
            os.environ["HOME"] = before


def _mine(folder: Path) -> None:
    """FLARE makes some of its files readable by all, whatever the mask."""
    for p in folder.rglob("*"):
        p.chmod(0o700 if p.is_dir() else 0o600)


def _yaml(path: Path, value: Mapping[str, object]) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")  # JSON is YAML
    return path


def request_zip(folder: Path, name: str, project: str) -> tuple[bytes, Path]:
    """Make the TLS key and FLARE's request HERE, once; returns the request and the path of the key."""
    place, key = folder / "request", folder / "request" / f"{name}.key"
    if not (place / f"{name}.request.zip").exists():
        private(folder)
        shutil.rmtree(place, ignore_errors=True)  # a request that a crash left half made
        who = {"name": project, "participants": [{"name": name, "type": "client", "org": project}]}
        definition = _yaml(folder / "participant.yaml", who)
        nvflare("cert", "request", "-p", str(definition), "--out", str(place), home=folder / "nvflare")
        definition.unlink()
        _mine(place)
    return (place / f"{name}.request.zip").read_bytes(), key


def csr_in(data: bytes, name: str) -> bytes:
    """The certificate request inside FLARE's request; refuses anything larger or other than an honest one."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            found = z.infolist()
            if len(found) > MEMBERS or any(i.file_size > MEMBER for i in found):
                raise MessageRefused(f"request of {name!r}: more files, or larger ones, than a request has")
            with z.open(f"{name}.csr") as f:
                csr = f.read(MEMBER + 1)
    except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError, OSError, EOFError, ValueError) as e:
        raise MessageRefused(f"request of {name!r}: not a request ({type(e).__name__})") from None
    if len(csr) > MEMBER:
        raise MessageRefused(f"request of {name!r}: the certificate request is too long")
    return csr


def describe_authority(folder: Path, project: str, fingerprint: str) -> None:
    """What FLARE wants to read beside the authority's certificate and key."""
    write_json(folder / "ca.json", {"project": project, "provision_version": "00", "rootCA_fingerprint": fingerprint})


def approve_zip(authority: Path, request: bytes, name: str, settings: dict[str, object]) -> bytes:
    """Sign a request at the coordinator: FLARE's signed answer for the site."""
    with tempfile.TemporaryDirectory(dir=authority, prefix="approve-") as scratch:
        place = Path(scratch)
        (place / "request.zip").write_bytes(request)
        server = {"host": settings["host"], "fed_learn_port": settings["port"], "admin_port": settings["admin_port"]}
        common = {"name": settings["project"], "scheme": "grpc", "connection_security": "mtls", "server": server}
        profile, signed = _yaml(place / "profile.yaml", common), place / f"{name}.signed.zip"
        options = ["-c", str(authority), "--profile", str(profile), "--out", str(signed), "--valid-days", str(DAYS)]
        nvflare("cert", "approve", str(place / "request.zip"), *options, home=authority / "nvflare")
        made = signed.read_bytes()
    faults = _faults(made, request, name)
    if faults:
        raise MessageRefused(f"request of {name!r}: it asks for more than a site's certificate", faults=faults)
    return made


def _faults(signed: bytes, request: bytes, name: str) -> list[str]:
    """What is wrong with a new certificate, before anybody gets it.

    FLARE takes kind, role, key and host names from the request, and a request is written by a stranger: one could ask for a
    certificate of the server's name, or of an administrator.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    with zipfile.ZipFile(io.BytesIO(signed)) as z:
        made = x509.load_pem_x509_certificate(z.read(f"{name}.crt"))

    def subject(oid: x509.ObjectIdentifier) -> list[str]:
        return [str(a.value) for a in made.subject.get_attributes_for_oid(oid)]

    hosts = [str(h.value) for h in made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    faults = []
    if made.public_key() != x509.load_pem_x509_csr(csr_in(request, name)).public_key():
        faults.append("another key than the one whose fingerprint was compared")
    if subject(NameOID.COMMON_NAME) != [name] or hosts != [name]:
        faults.append(f"the names {', '.join([*subject(NameOID.COMMON_NAME), *hosts])}")
    if subject(NameOID.UNSTRUCTURED_NAME) != ["client"]:
        faults.append(f"the role {', '.join(subject(NameOID.UNSTRUCTURED_NAME)) or 'none'}")
    if made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        faults.append("an authority of its own")
    return faults


def package(folder: Path, name: str, signed: bytes, fingerprint: str) -> dict[str, str]:
    """Assemble the kit at the site: FLARE checks the authority's signature and fingerprint, and that the key fits.

    Returns the files of ``startup`` that a client needs; the rest (shell scripts, a policy that allows code) is left behind.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="package-") as scratch:
        place = Path(scratch)
        (place / f"{name}.signed.zip").write_bytes(signed)
        options = ["--request-dir", str(folder / "request"), "-w", str(place / "kit"), "--fingerprint", fingerprint]
        nvflare("package", str(place / f"{name}.signed.zip"), *options, home=folder / "nvflare")
        _mine(folder / "request")
        kits = sorted((place / "kit").glob(f"*/prod_*/{name}/startup"))
        if len(kits) != 1:
            raise MessageRefused(f"FLARE made no kit for {name!r}")
        return {n: (kits[0] / n).read_text(encoding="utf-8") for n in ("client.crt", "client.key", "rootCA.pem")}
