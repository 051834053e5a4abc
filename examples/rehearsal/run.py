"""A rehearsal of a federation on this machine: ``make rehearsal``, or ``python examples/rehearsal/run.py OUT``.

A coordinator and three hospitals as separate processes with mutual TLS on loopback, each hospital with its own node file
and database, enrolled as real ones are: keys are born at the site, which sends a request with its one-time invite; the
coordinator approves it by its fingerprint; certificate and roster come back over the network. Then one study of each kind: TRIP masked, DPEM masked with formal patient-level privacy, a Gaussian mixture by subspace perturbation, UnPSL
plain. Everything is done with the command ``polyclinic``; no FLARE command is typed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import hospitals

STUDIES = {
    "trip": ('name = "trip"\nrank = 4\nrounds = 10\naggregation = "masked"', hospitals.TENSOR, ""),
    "dpem": (
        'name = "dpem"\nrank = 6\nrounds = 3\naggregation = "masked"',
        hospitals.TENSOR,
        "[privacy]\nepsilon = 4.0\ndelta = 1e-6\n",
    ),
    "mixture": (
        'name = "gaussianmixture"\nn_components = 2\nrounds = 4\naggregation = "subspace"\nradius = 20.0',
        hospitals.FEATURES,
        "",
    ),
    "unpsl": ('name = "unpsl"\nrounds = 10\naggregation = "plain"', hospitals.FEATURES, ""),
}
QUESTIONS = {
    "trip": "Which drugs and diagnoses occur together in patients of three hospitals?",
    "dpem": "Which drugs and diagnoses occur together, with a formal patient-level bound on what is learned of anybody?",
    "mixture": "Which groups of patients do six measurements show?",
    "unpsl": "Which measurements make patients similar who share a status?",
}


def polyclinic(*arguments: object) -> dict[str, Any]:
    """Run one command as a person would, and read its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "polyclinic.cli", *map(str, arguments), "--json"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(
            f"polyclinic {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def free_port() -> int:
    """A port nobody uses now."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def same_as_one_process(study: Path, run: Path, nodes: dict[str, Path], scratch: Path) -> bool:
    """Whether the model is, bit for bit, the one that the same node files give in one process."""
    from polyclinic.config import Node, Study
    from polyclinic.node.flare.result import read_outcome
    from polyclinic.protocol.loop import Simulation
    from polyclinic.protocol.wire import encoding as wire
    from polyclinic.records.ingest import ingest
    from polyclinic.studies.registry import federated

    what = Study.read(study)
    sites = [ingest(Node.read(node), what, scratch / name).site for name, node in nodes.items()]
    here, there = Simulation(federated(what), sites).run(), read_outcome(run, federated(what))
    return wire.encode(wire.pack(here.public)) == wire.encode(wire.pack(there.public))


def main(out: Path) -> None:
    """Rehearse."""
    os.umask(0o077)
    shutil.rmtree(out, ignore_errors=True)
    hospitals.vocabulary(out / "studies")
    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begin:6.1f} s  {text}", flush=True)

    coordinator = out / "coordinator"
    names = [x for n in hospitals.NAMES for x in ("--site", n)]
    made = polyclinic(
        "coordinator",
        "init",
        coordinator,
        *names,
        "--host",
        "localhost",
        "--port",
        free_port(),
        "--admin-port",
        free_port(),
        "--enrol-port",
        free_port(),
    )
    say(f"coordinator founded, fingerprint {made['fingerprint']}")
    nodes = {
        n: hospitals.hospital(out / n, n, patients=120, policy="max_epsilon_total = 8.0\nmax_exact = 100")
        for n in hospitals.NAMES
    }
    try:
        polyclinic("coordinator", "start", coordinator)
        say("coordinator runs")
        for name, invite in zip(hospitals.NAMES, made["invites"]):
            asked = polyclinic("site", "join", invite, "--node", nodes[name], "--wait", 0)
            assert asked["coordinator"] == made["fingerprint"]  # what the two people compare by telephone
            shown = polyclinic("coordinator", "requests", coordinator)["requests"][name]["fingerprint"]
            assert shown == asked["fingerprint"]
            polyclinic("coordinator", "approve", coordinator, name, "--fingerprint", shown, "--yes")
            joined = polyclinic("site", "join", invite, "--node", nodes[name])
            say(f"{name} {joined['state']}, fingerprint {shown}")
        for node in nodes.values():
            polyclinic("site", "pin", "--node", node, "--yes")
            polyclinic("site", "start", "--node", node)
        say("three sites run")
        for name, (method, data, tail) in STUDIES.items():
            head = f'deadline = 120\ndescription = "{QUESTIONS[name]}"\n'
            study = hospitals.study(out / "studies", name, method, data=data, head=head, tail=tail)
            done = polyclinic("coordinator", "submit", coordinator, study)
            metrics = json.loads((Path(done["run"]) / "metrics.json").read_text())
            figures = f"{metrics['rounds']} rounds, {metrics['bytes_up']:,} bytes up, guarantee: {metrics['guarantee']}"
            if metrics["epsilon"] is not None:
                figures += (
                    f" ({metrics['adjacency']}-level epsilon {metrics['epsilon']:.3g}, delta {metrics['delta']:g})"
                )
            say(f"study {name}: {done['state']}; {figures}")
            say(f"  {done['run']}")
            if metrics["epsilon"] is None:  # privacy noise is drawn anew each time, so there is nothing to compare
                same = same_as_one_process(study, Path(done["run"]), nodes, out / "one-process")
                say(f"  the model of one process, bit for bit: {'yes' if same else 'NO'}")
                if not same:
                    raise SystemExit(f"study {name}: not the model of one process")
            report = subprocess.run(
                [sys.executable, "-m", "polyclinic.cli", "report", done["run"]], capture_output=True, text=True
            )
            say("  report.html written" if report.returncode == 0 else f"  no report: {report.stderr.strip()[:200]}")
    finally:
        for node in nodes.values():
            polyclinic("site", "stop", "--node", node)
        polyclinic("coordinator", "stop", coordinator)
        say("everything is stopped")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/rehearsal"))
