"""Runs seeds, and prints the shrunk script of each kind of finding.

python -m tests.simulation.operators --seeds 2000 [--first 0] [--without RULE …] [--each]
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from functools import partial

import structlog

from tests.simulation.operators.campaign import Campaign, fails, finding_of, script_of
from tests.simulation.operators.judge import Finding
from tests.support.scripts import shrunk, written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=())
    parser.add_argument("--shown", type=int, default=3, help="scripts of each kind")
    parser.add_argument("--no-rejections", action="store_true")
    asked = parser.parse_args()
    rejects = not asked.no_rejections
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    began, kinds, events = time.monotonic(), Counter[str](), Counter[str]()
    for seed in range(asked.first, asked.first + asked.seeds):
        script = script_of(seed, asked.without)
        campaign = Campaign(seed, rejects=rejects)
        try:
            campaign.run(script)
        except Finding as finding:
            kinds[finding.kind] += 1
            if kinds[finding.kind] <= asked.shown:
                shorter = shrunk(script, partial(fails, seed, finding.kind, rejects=rejects))
                print(f"seed {seed}: {finding_of(seed, shorter, rejects=rejects)}\n{written(shorter)}")
        except Exception:  # noqa: BLE001 - an error of the harness or of the product
            kinds["error"] += 1
            if kinds["error"] <= asked.shown:
                print(f"seed {seed}:")
                traceback.print_exc()
        events += campaign.events
    print(f"{asked.seeds} runs in {time.monotonic() - began:.0f} s: {dict(kinds) or 'no finding'}")
    print(dict(events.most_common()))
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
