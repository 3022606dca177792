"""Opens the sink of a section. A client library is imported only when a sink that needs it is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from configuration.sink_settings import StoreConfig
from sinks.contract import Sink
from sinks.errors import SinkError
from sinks.shaping.sink import shaped


def make_sink(name: str, section: StoreConfig, prefix: str, slot: str | None = None) -> Sink:
    """Opens the sink: connects to its store and checks it. Rows are written in the shape of the section's mapping.

    `prefix` is the topic prefix, with which the store's names begin unless the section sets another. `slot`: of the
    generation to write, see sinks.slots; None: of the one that readers see. Raises SinkError if the client library is
    not installed or the store can't be used. A warehouse needs a Spark session, so the job that has one opens it.
    """
    module, _, adapter = section.adapter.partition(":")
    if not module:
        raise SinkError(f"the {section.type} {name} is written by Spark", f"cdc sink run {name}")
    options = {} if slot is None else {"slot": slot}
    with needs(section.needs):
        opened: Sink = getattr(import_module(module), adapter).open(section, prefix, name=name, **options)
    return shaped(opened, section)


@contextmanager
def needs(library: tuple[str, str] | None) -> Iterator[None]:
    """Raises SinkError if an import in the block fails. `library`: the module, and Watershed's extra that installs
    it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # Where something else is missing, that advice would not help.
        if library is None or (error.name or "").partition(".")[0] != library[0]:
            raise
        raise SinkError(
            f"the sink {library[1]} needs the Python package {library[0]}", f"pip install 'watershed-cdc[{library[1]}]'"
        ) from error
