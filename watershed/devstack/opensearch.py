"""OpenSearch 3.8 as one node, assembled from its jars: the core, and the modules that the sinks and their tests
need.
"""

import json
import os
import shutil
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from spark_jobs.jars.lock import Lock, read_lock
from spark_jobs.jars.resolver import resolve_sets
from watershed.devstack import startup_cache
from watershed.devstack.instance import HOST, ServerInstance, grant_read, link_or_copy
from watershed.devstack.java import JVM_OPTIONS, Jvm, server_java
from watershed.devstack.keeper import Command
from watershed.devstack.server import base_environment

VERSION = "3.8.0"
RECOVERIES_AT_ONCE = 500
# Module → its class and the module that it extends.
MODULES = {
    "analysis-common": ("org.opensearch.analysis.common.CommonAnalysisModulePlugin", "lang-painless"),
    "lang-painless": ("org.opensearch.painless.PainlessModulePlugin", ""),
    "mapper-extras": ("org.opensearch.index.mapper.MapperExtrasModulePlugin", ""),
    "parent-join": ("org.opensearch.join.ParentJoinModulePlugin", ""),
    "percolator": ("org.opensearch.percolator.PercolatorModulePlugin", ""),
    "reindex": ("org.opensearch.index.reindex.ReindexModulePlugin", ""),
    "transport-netty4": ("org.opensearch.transport.Netty4ModulePlugin", ""),
}
OPTIONS = "OPENSEARCH_JAVA_OPTS"  # as OpenSearch's own scripts name the variable; of two flags Java takes the later one
HEAP = ("-Xms512m", "-Xmx512m")
LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class OpenSearch:
    record: Path | None = None  # the file for the list of loaded classes

    name: ClassVar[str] = "opensearch"
    title: ClassVar[str] = "OpenSearch"
    port_names: ClassVar[tuple[str, ...]] = ("http", "transport")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 180.0  # a loaded machine takes ten times as long as an idle one
    jar_sets: ClassVar[tuple[str, ...]] = ("opensearch", "icu")

    def prepare(self, instance: ServerInstance) -> Command:
        folder = instance.own()
        data, temporary, logs = instance.own("data"), instance.own("tmp"), instance.own("logs")
        home = lay_out(instance, read_lock())
        configuration = instance.own("config")
        settings = {
            "cluster.name": cluster_name(instance),
            "node.name": "watershed",
            "discovery.type": "single-node",
            "network.host": HOST,
            "http.port": instance.ports["http"],
            "transport.port": instance.ports["transport"],
            "path.data": str(data),
            "path.logs": str(logs),
            "path.repo": [str(instance.own("snapshots"))],
            "cluster.routing.allocation.disk.threshold_enabled": False,
            "action.auto_create_index": False,
            # The default is four: the indexes of 120 tables then took 40 s, because every few indexes cause a change of
            # the cluster's state.
            "cluster.routing.allocation.node_initial_primaries_recoveries": RECOVERIES_AT_ONCE,
        }
        lines = (f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
        (configuration / "opensearch.yml").write_text("".join(lines), encoding="utf-8")
        (configuration / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        grant_read(configuration)
        jvm = self.jvm(instance)
        startup = startup_cache.options(self.name, jvm, instance, self.record)
        paths = {
            "opensearch.path.home": home,
            "opensearch.path.conf": configuration,
            "jna.tmpdir": temporary,
            "java.io.tmpdir": temporary,
        }
        properties = [f"-D{name}={path}" for name, path in paths.items()]
        return Command(
            [*jvm.argv(*startup, *properties), "org.opensearch.bootstrap.OpenSearch"],
            cwd=folder,
            log=instance.log,
            env=base_environment(folder),
            uid=instance.unprivileged,
        )

    def jvm(self, instance: ServerInstance) -> Jvm:
        java = server_java()
        home = lay_out(instance, read_lock())
        # The runtime from the wheel lacks the locales that the analysis module loads; ICU's jars contain them.
        locales = () if java.has_all_locales else ("-Djava.locale.providers=CLDR,SPI",)
        folders = ("lib",) if java.has_all_locales else ("lib", "icu")
        return Jvm(
            instance.public(java.home),
            (*HEAP, *JVM_OPTIONS, "--enable-native-access=ALL-UNNAMED", *locales, *os.environ.get(OPTIONS, "").split()),
            (
                "-Dopensearch.distribution.type=tar",
                "-Dopensearch.bundled_jdk=false",
                "-Dlog4j.shutdownHookEnabled=false",  # OpenSearch shuts its logging down itself
                "-Dlog4j2.disable.jmx=true",
            ),
            tuple(jar for folder in folders for jar in sorted((home / folder).glob("*.jar"))),
        )

    def recording(self, file: Path) -> "OpenSearch":
        return OpenSearch(record=file)

    def answering_pid(self, instance: ServerInstance) -> int | None:
        if not is_healthy(url(instance)):
            return None
        (node,) = _get(url(instance) + "/_nodes/_local/process")["nodes"].values()
        return int(node["process"]["id"])


def url(instance: ServerInstance) -> str:
    return f"http://{HOST}:{instance.ports['http']}"


def cluster_name(instance: ServerInstance) -> str:
    return f"watershed-{instance.identity}"


def is_healthy(address: str) -> bool:
    """Returns whether the cluster's health is green or yellow. Raises OSError if no server answers."""
    return _get(address + "/_cluster/health")["status"] in ("green", "yellow")


def _get(address: str) -> Any:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
    with direct.open(address, timeout=2) as answer:
        return json.load(answer)


def lay_out(instance: ServerInstance, lock: Lock) -> Path:
    """Creates the home folder that OpenSearch expects, with hard links to the cached jars. It has another name until it
    is complete.
    """
    home = instance.folder / f"home-{VERSION}"
    if home.exists():
        return home
    partial = home.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = resolve_sets(["opensearch", "icu"], instance.cache, lock=lock)
    for set_name, prefix in (("opensearch", ""), ("icu", "icu")):
        for file, (_, folder) in zip(files[set_name], lock.placed(set_name), strict=True):
            target = partial / prefix / folder
            target.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, target / file.name)
    for name in ("bin", "plugins"):
        (partial / name).mkdir()  # OpenSearch does not start without these folders
    for name, (main_class, extended) in MODULES.items():
        description = {
            "name": name,
            "description": name,
            "version": VERSION,
            "opensearch.version": VERSION,
            "java.version": "21",
            "classname": main_class,
            "extended.plugins": extended,
            "has.native.controller": "false",
        }
        text = "".join(f"{key}={value}\n" for key, value in description.items())
        (partial / "modules" / name / "plugin-descriptor.properties").write_text(text, encoding="utf-8")
    grant_read(partial)
    partial.rename(home)
    return home
