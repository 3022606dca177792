"""Folders that look like an installed Java to the code that reads its release."""

from pathlib import Path

from watershed.devstack.java import Jvm


def java(folder: Path, version: str = "25.0.2") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def small_jvm(tmp_path: Path) -> Jvm:
    """Returns a JVM of such a folder, with two jars."""
    jars = [tmp_path / name for name in ("a.jar", "b.jar")]
    for jar in jars:
        jar.write_text(jar.name)
    return Jvm(java(tmp_path / "java"), ("-Xmx1m",), ("-Dfolder=/here",), tuple(jars))
