"""The generations of one search store, of which readers see one. Each is shown, kept and deleted as a whole."""

from collections.abc import Collection
from typing import Any, Final

from opensearchpy.exceptions import NotFoundError, RequestError

from cdc.config.stores import SearchConfig
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.search.generations import Generations, serving_slot
from sinks.search.mapping import LIVE
from sinks.search.names import SearchNames
from sinks.search.preparation import aliased
from sinks.search.server import SearchServer

# OpenSearch refuses writes to every index of a disk that is fuller than this, the serving ones too.
DISK_USED_MAX: Final = 0.95


class SearchSlots:
    """Implements sinks.slots.Slots."""

    in_place = False

    def __init__(self, config: SearchConfig, prefix: str, retries: Retries | None = None) -> None:
        self._server = SearchServer(config, retries or Retries())
        self._names = SearchNames(prefix if config.index_prefix is None else config.index_prefix, config.shapes)

    def serving(self) -> str:
        return serving_slot(self._server, self._names)

    def others(self) -> dict[str, int | None]:
        pattern = f"{self._names.in_slot('').marker},{self._names.in_slot('g*').marker}"
        params = {"ignore_unavailable": "true", "expand_wildcards": "open"}
        held = self._server.call(lambda client: client.indices.get(index=pattern, params=params))
        slots = {self._names.slot_of(marker) for marker in held} - {self.serving()}
        return {slot: self.generation(slot) for slot in sorted(slots)}

    def generation(self, slot: str) -> int | None:
        return self._generations(slot).current(any_shape=True)

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        held = self._generations(self.serving()).indexes()
        indexes = sorted(index for table, index in held.items() if tables is None or table in tables)
        if not indexes:
            return
        # Statistics of all indexes are read, because a URL with one name for each table could be too long.
        stats = self._server.call(lambda client: client.indices.stats(metric="store"))["indices"]
        wanted = sum(stats[index]["primaries"]["store"]["size_in_bytes"] for index in indexes if index in stats)
        disks = self._server.call(lambda client: client.nodes.stats(metric="fs"))["nodes"].values()
        totals = [disk["fs"]["total"] for disk in disks]
        room = sum(
            int(disk["available_in_bytes"] - (1 - DISK_USED_MAX) * disk["total_in_bytes"])
            for disk in totals
            if disk.get("total_in_bytes")
        )
        if totals and wanted > room:
            raise SinkError(
                f"{self._server.name}: a second generation needs about {wanted:,} bytes, and its disks take {room:,} "
                f"before they are {DISK_USED_MAX:.0%} full",
                "free space or add a node, then start the rebuild again; readers keep their present generation",
            )

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        """Returns 0: the indexes of the slot hold only documents that the rebuild has written."""
        del slot, version, tables
        return 0

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        generations, names = self._generations(slot), self._names.in_slot(slot)
        actions: list[dict[str, Any]] = []
        if adopts and (former := self._names.in_slot(self.serving())).slot != slot:
            # After a kill behind this, both markers name these indexes, and `drop` deletes none that readers see.
            for table, index in generations.adopt(self._generations(former.slot)).items():
                actions.append({"add": {"index": index, "alias": names.own(table)}})
                if index in aliased(self._server, former.own(table)):
                    actions.append({"remove": {"index": index, "alias": former.own(table)}})
        for table, index in generations.indexes().items():
            alias = names.alias(table)
            shown = [other for other in aliased(self._server, alias) if other != index]
            actions += [{"remove": {"index": other, "alias": alias}} for other in shown]
            actions.append({"add": {"index": index, "alias": alias, "filter": LIVE}})
        markers = [other for other in aliased(self._server, names.serving) if other != names.marker]
        actions += [{"remove": {"index": other, "alias": names.serving}} for other in markers]
        actions.append({"add": {"index": names.marker, "alias": names.serving}})
        try:
            self._server.call(lambda client: client.indices.update_aliases(body={"actions": actions}), (400, 404))
        except (NotFoundError, RequestError) as error:
            raise SinkError(
                f"{self._server.name}: the aliases of generation {generations.current(any_shape=True)} can't be moved",
                "nothing to do: readers see the former generation, and the sink tries again by itself",
            ) from error

    def drop(self, slot: str) -> None:
        assert slot != self.serving(), "readers see it"
        names = self._names.in_slot(slot)
        indexes = set(self._generations(slot).indexes().values())
        adopted = set(self._generations(self.serving()).indexes().values())
        for index in [*sorted(indexes - adopted), names.marker]:
            self._delete(index)

    def close(self) -> None:
        self._server.close()

    def _delete(self, index: str) -> None:
        self._server.call(lambda client: client.indices.delete(index=index, ignore_unavailable=True))

    def _generations(self, slot: str) -> Generations:
        # Shapes are not compared here.
        return Generations(self._server, self._names.in_slot(slot), lambda _: "")
