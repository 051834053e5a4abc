"""Who may open the owner's page of a site, and as what: a file of the site that only its owner can read."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import read_json, write_json

ROLES: Final = ("viewer", "officer", "admin")  # each may do what the one before may
LEAST: Final = 12  # letters of a password
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _hash(password: str, salt: bytes) -> bytes:
    """scrypt with 32 MB, as OWASP advises. A guess costs about a tenth of a second."""
    return hashlib.scrypt(password.encode(), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)


@dataclass(frozen=True)
class PageAccount:
    """A role and the hash of a password."""

    role: str
    salt: str
    key: str

    def may(self, role: str) -> bool:
        """Whether the account may do what ``role`` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


NOBODY: Final = PageAccount("viewer", "00" * 16, "00" * 32)  # an unknown name takes as long as a wrong password


class Accounts:
    """The accounts of one site.

    Parameters
    ----------
    path
        The file, with mode 0600.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> Mapping[str, PageAccount]:
        """Return every account by name. It is read anew, so a removed account is out at once."""
        if not self.path.exists():
            return {}
        if os.name != "nt" and self.path.stat().st_mode & 0o077:
            raise ConfigError(f"{self.path}: others may read it", hint=f"chmod 600 {self.path}")
        try:
            found = {n: PageAccount(**{k: str(v) for k, v in a.items()}) for n, a in read_json(self.path).items()}
            if any(a.role not in ROLES or not bytes.fromhex(a.salt + a.key) for a in found.values()):
                raise ValueError("an unknown role")
        except (TypeError, ValueError, AttributeError) as e:
            raise ConfigError(f"{self.path}: not a file of accounts ({e})", hint="polyclinic site user") from None
        return found

    def put(self, name: str, role: str, password: str) -> None:
        """Add an account, or give it another role and password."""
        faults = [] if NAME.fullmatch(name) else [f"name {name!r}: letters, digits, dot, hyphen, at most 64"]
        faults += [] if role in ROLES else [f"role {role!r}: one of {', '.join(ROLES)}"]
        faults += [] if LEAST <= len(password) <= 1024 else [f"password: at least {LEAST} characters, at most 1024"]
        if faults:
            raise ConfigError("this account cannot be added", faults=faults)
        salt = secrets.token_bytes(16)
        self._write({**self.all(), name: PageAccount(role, salt.hex(), _hash(password, salt).hex())})

    def remove(self, name: str) -> None:
        """Remove an account."""
        if name not in self.all():
            raise ConfigError(f"no account {name!r}", faults=[f"accounts: {', '.join(self.all()) or 'none'}"])
        self._write({n: a for n, a in self.all().items() if n != name})

    def _write(self, accounts: Mapping[str, PageAccount]) -> None:
        write_json(self.path, {n: asdict(a) for n, a in accounts.items()})

    def check(self, name: str, password: str) -> PageAccount | None:
        """Return the account if the password is right."""
        known = self.all().get(name)
        account = known or NOBODY
        right = secrets.compare_digest(_hash(password[:1024], bytes.fromhex(account.salt)).hex(), account.key)
        return known if right else None


def accounts_of(node: Path) -> Path:
    """Return the file of a site's accounts."""
    return Node.read(node).home / "accounts.json"
