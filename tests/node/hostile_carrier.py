"""A carrier that does to files whatever a carrier can do: ``python hostile_carrier.py ROOT SEED SHARE [CHANGE]``.

It copies every file of every party's outbox into its addressee's inbox, and with probability SHARE each it loses a file, cuts it,
doubles it, delays it, or lets others overtake it; with probability CHANGE it flips one bit of it (``changed.json`` has the
names). Of everything it saw a copy stays in ROOT/seen, as at a curious carrier's.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from pathlib import Path

FAULTS = ("lose", "cut", "double", "delay", "overtake")


def main(root: Path, seed: int, share: float, change: float = 0.0) -> None:
    rng = random.Random(seed)
    parties = {p.name: p for p in root.iterdir() if (p / "out").is_dir()}
    seen, held = root / "seen", []
    seen.mkdir(exist_ok=True)
    handled: set[tuple[str, str]] = set()
    counts = dict.fromkeys((*FAULTS, "carried"), 0)
    changed: list[str] = []
    while not (root / "stop").exists():
        found = [(p, f) for p in parties.values() for f in (p / "out").iterdir() if f.suffix in (".pcf", ".card")]
        rng.shuffle(found)
        for place, file in found:
            to = [n for n in parties if n != place.name] if file.suffix == ".card" else [file.name.partition(".")[0]]
            for name in to:
                if (file.name, name) in handled or name not in parties:
                    continue
                handled.add((file.name, name))
                try:
                    data = file.read_bytes()
                except FileNotFoundError:
                    continue
                (seen / file.name).write_bytes(data)
                faults = {f for f in FAULTS if rng.random() < share}
                for f in faults:
                    counts[f] += 1
                now = time.monotonic()
                if "lose" in faults:
                    if file.suffix == ".card":  # a synchronised folder is synchronised again
                        handled.discard((file.name, name))
                    continue
                if "cut" in faults:
                    held.append((now, name, file.name, data[: rng.randrange(len(data))]))
                    if file.suffix == ".card":
                        handled.discard((file.name, name))
                    continue
                if file.suffix == ".pcf" and rng.random() < change:
                    at = rng.randrange(12, len(data))  # behind the length: a changed length looks like a cut
                    data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
                    changed.append(file.name)
                late = rng.uniform(0.05, 0.6) if faults & {"delay", "overtake"} else 0.0
                held.append((now + late, name, file.name, data))
                if "double" in faults:
                    held.append((now + late + rng.uniform(0.0, 1.0), name, file.name, data))
        for item in [h for h in held if h[0] <= time.monotonic()]:
            held.remove(item)
            _, name, called, data = item
            (parties[name] / "in" / called).write_bytes(data)  # in place: a reader may see half of it
            counts["carried"] += 1
        (root / "changed.json").write_text(json.dumps(changed))
        (root / "carrier.json.new").write_text(json.dumps(counts))
        shutil.move(root / "carrier.json.new", root / "carrier.json")
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:5]))
