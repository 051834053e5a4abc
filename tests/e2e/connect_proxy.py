"""``python connect_proxy.py PORT LOG [USER:PASSWORD]``: a hospital's proxy, which passes TLS through on CONNECT and notes each."""

from __future__ import annotations

import base64
import socket
import sys
import threading


def pump(a: socket.socket, b: socket.socket) -> None:
    """Carry bytes one way."""
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    finally:
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def serve(line: socket.socket, log: str, user: str) -> None:
    """One connection."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = line.recv(4096)
        if not data:
            return
        head += data
    first = head.split(b"\r\n")[0].decode()
    wanted = f"basic {base64.b64encode(user.encode()).decode()}"
    given = [h.partition(b":")[2].strip().decode() for h in head.split(b"\r\n") if h.lower().startswith(b"proxy-auth")]
    known = not user or any(g.lower() == wanted.lower() for g in given)
    with open(log, "a", encoding="utf-8") as f:
        f.write(f"{'let through' if known else 'refused'} {first}\n")
    if not known or not first.startswith("CONNECT "):
        line.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        line.close()
        return
    host, port = first.split()[1].rsplit(":", 1)
    out = socket.create_connection((host, int(port)), 10)
    out.settimeout(None)
    line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    threading.Thread(target=pump, args=(line, out), daemon=True).start()
    pump(out, line)


def main(port: str, log: str, user: str = "") -> None:
    """Serve until ended."""
    with socket.create_server(("", int(port))) as listening:
        while True:
            line, _ = listening.accept()
            threading.Thread(target=serve, args=(line, log, user), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
