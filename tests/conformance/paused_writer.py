"""A writer in a process of its own, which a test stops and continues at any moment. It is given pickled in its standard
input: section and prefix of the sink, the schema of its table, and batches of changes, each of which it applies."""

import pickle
import sys
from contextlib import closing

from sinks.reduction import reduce_changes
from sinks.registry import make_sink


def main() -> None:
    section, prefix, schema, batches = pickle.load(sys.stdin.buffer)  # noqa: S301  from the test
    with closing(make_sink("zombie", section, prefix)) as sink:
        sink.attach(schema)
        for batch in batches:
            sink.apply(reduce_changes(batch))


if __name__ == "__main__":
    main()
