"""How Redis is run; what it then does is in tests/integration/test_stack.py."""

from pathlib import Path

from watershed.devstack.instance import ServerInstance
from watershed.devstack.redis import Redis, url


def test_a_write_is_in_the_file_before_its_reply(tmp_path: Path) -> None:
    """`appendfsync everysec` would hold writes back while an fsync runs, and kill -9 would lose them."""
    instance = ServerInstance(tmp_path / "redis", {"redis": 20_001}, "identity", None, tmp_path)
    argv = list(Redis().prepare(instance).argv)
    options = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert (options["--appendonly"], options["--appendfsync"]) == ("yes", "no")
    assert (options["--port"], options["--bind"]) == ("20001", "127.0.0.1")
    assert Path(options["--dir"]).is_dir()
    assert url(instance) == "redis://127.0.0.1:20001/0"
