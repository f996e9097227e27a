"""Spoil a hundred thousand files and commands; print what came of them, and every fault.

    python benchmarks/fuzz.py --inputs 100000

Files are drawn for every reader of traces, configurations, policies and results on disk, and
commands for every verb of the command line (`tests/abuse` tells how). A fault is an exception that
is not this package's own, a status or a message that breaks the rules, a hang, or more than 1 GiB
for one input; its input is kept below --keep, and the exit status is 1.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from abuse import command_line
from abuse.targets import TARGETS, fuzz
from abuse.watch import Outcome

#: Share of the inputs that are commands, which take longer than files.
COMMANDS = 0.05


class Tally:
    """What came of one target's inputs."""

    def __init__(self, name: str, keep: Path) -> None:
        self.name, self.keep = name, keep
        self.kinds: Counter[str] = Counter()
        self.slowest = self.most = 0.0
        self.seen: set[str] = set()

    def run(self, draw: Callable[[Random], tuple[bytes, Outcome]], count: int, seed: int) -> None:
        """Draw and count; faults of one place are kept once."""
        start = time.process_time()
        for number in range(count):
            data, outcome = draw(Random(f"{seed} {self.name} {number}"))
            self.kinds[outcome.kind] += 1
            self.slowest = max(self.slowest, outcome.seconds)
            self.most = max(self.most, outcome.grown_mib)
            place = outcome.message.rpartition(" at ")[2]
            if outcome.kind == "fault" and place not in self.seen:
                self.seen.add(place)
                file = self.keep / f"{self.name.replace('/', '_').replace(' ', '_')}_{number}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                print(f"FAULT {outcome.message}\n      {file}")
        kinds = "".join(f"{self.kinds[kind]:>10,}" for kind in ("accepted", "refused", "fault"))
        seconds = time.process_time() - start
        print(
            f"{self.name:<36}{count:>9,}{kinds}{self.slowest:>10.2f} s{self.most:>8.0f} MiB"
            f"{seconds:>8.0f} s",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--keep", type=Path, default=Path("faults"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{'target':<36}{'inputs':>9}{'accepted':>10}{'refused':>10}{'faults':>10}"
        f"{'slowest':>12}{'memory':>12}{'CPU':>9}"
    )
    files = [target for target in TARGETS.values() if arguments.only in target.name]
    verbs = [
        (path, app) for path, app in command_line.verbs() if arguments.only in "$ " + " ".join(path)
    ]
    tallies = []

    def tally(name: str) -> Tally:
        tallies.append(Tally(name, arguments.keep.absolute()))
        return tallies[-1]

    share = COMMANDS if files and verbs else float(bool(verbs))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "x"
        for target in files:
            count = -int(arguments.inputs * (share - 1) // len(files))
            tally(target.name).run(
                lambda rng, target=target: fuzz(target, rng, place), count, arguments.seed
            )
        command_line.furnish(place)
        with command_line.inside(place):
            for path, app in verbs:

                def draw(
                    rng: Random, path: tuple[str, ...] = path, app: object = app
                ) -> tuple[bytes, Outcome]:
                    words, outcome = command_line.fuzz(path, app, rng)
                    return "\0".join(words).encode("utf-8", "surrogatepass"), outcome

                count = -int(arguments.inputs * -share // len(verbs))
                tally("$ " + " ".join(path)).run(draw, count, arguments.seed)
    total: Counter[str] = sum((one.kinds for one in tallies), Counter())
    print(
        f"{total.total():,} inputs: {total['accepted']:,} accepted, {total['refused']:,} refused, "
        f"{total['fault']:,} faults"
    )
    return 1 if total["fault"] else 0


if __name__ == "__main__":
    sys.exit(main())
