"""The command line: which commands there are, what is imported for them, and how errors are said."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from cdc import __version__
from cdc.model.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    GapError,
    NotInTimeError,
    SourceError,
    UnreachableError,
    UnsupportedChangeError,
    WatershedError,
)
from watershed.cli.exit_codes import EPILOG, INTERRUPTED, PARTIAL, WORTH_A_RETRY
from watershed.cli.main import COMMANDS, Entry, application, main, words_to_complete
from watershed.client.applied import WaitError
from watershed.client.waiting import WaitTimeoutError
from watershed.verify.pipeline_reader import SinkStalledError

Run = Callable[..., tuple[int, str, str]]
HEAVY = ("pyspark", "confluent_kafka", "psycopg", "opensearchpy", "redis", "pyarrow")


def fail() -> None:
    raise ConfigError("the file x.yml has no sections", "see the README")


def fail_plainly() -> None:
    raise WatershedError("it is broken")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `cdc` with these words, as its entry point does: (exit code, standard output, standard error)."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cdc", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        reported = capsys.readouterr()
        return code, reported.out, reported.err

    for name in ("fail", "fail_plainly", "interrupt"):
        monkeypatch.setitem(COMMANDS, name, Entry(f"{__name__}:{name}", "For the test."))
    return run


def test_an_error_is_its_sentence_and_the_next_step(run: Run) -> None:
    assert run("fail") == (2, "", "error: the file x.yml has no sections\n  next: see the README\n")
    assert run("fail_plainly") == (1, "", "error: it is broken\n")


def test_ctrl_c_ends_without_a_word(run: Run) -> None:
    assert run("interrupt") == (130, "", "")


def test_errors_of_servers_and_of_history_have_codes_of_their_own() -> None:
    codes = [kind.exit_code for kind in (WatershedError, ConfigError, UnreachableError, GapError, NotInTimeError)]
    assert codes == [1, 2, 3, 4, 7]
    assert all(f"{code} " in EPILOG for code in (*codes, PARTIAL, INTERRUPTED))


def test_codes_say_whether_the_same_command_may_succeed_later() -> None:
    passing = (UnreachableError, ConnectionLost, NotInTimeError, WaitTimeoutError, SinkStalledError)
    assert {kind.exit_code for kind in passing} == WORTH_A_RETRY
    lasting = (WatershedError, ConfigError, SourceError, BrokerError, GapError, UnsupportedChangeError, WaitError)
    assert not WORTH_A_RETRY.intersection(kind.exit_code for kind in lasting)


def test_a_shell_may_complete_what_the_command_has() -> None:
    """Of the command that has been typed, which is the only one that is imported."""
    assert words_to_complete({"COMP_WORDS": "cdc sink r"}) == [], "no shell asks"
    assert words_to_complete({"_CDC_COMPLETE": "complete_bash", "COMP_WORDS": "cdc sink r"}) == ["sink", "r"]
    zsh = {"_CDC_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "cdc wait --l"}
    assert words_to_complete(zsh) == ["wait", "--l"]
    asked = {"_CDC_COMPLETE": "complete_bash", "COMP_WORDS": "cdc sink r", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "from watershed.cli.main import main; main()"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[4]), **asked},
    )
    assert done.stdout.split() == ["run"], done.stderr


def test_what_is_for_development_stands_last_in_the_help() -> None:
    assert list(COMMANDS)[-2:] == ["demo", "stack"]


def test_the_version_is_told(run: Run) -> None:
    assert run("--version") == (0, f"watershed {__version__}\n", "")


def test_an_unknown_command_is_a_usage_error_that_suggests_the_nearest(run: Run) -> None:
    code, _, reported = run("stakc")
    assert code == 2
    assert "No such command 'stakc'. Did you mean 'stack'?" in " ".join(reported.split())


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_where_its_entry_says(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    target = getattr(import_module(module), attribute)
    assert isinstance(target, Typer) or callable(target)
    assert CliRunner().invoke(application([name]), [name, "--help"]).exit_code == 0


def test_the_help_of_a_command_has_its_exit_codes() -> None:
    reported = CliRunner().invoke(application(["verify"]), ["verify", "--help"]).stdout
    assert "Exits with 5 if a store differs" in " ".join(reported.split())


@pytest.mark.parametrize("words", [["--help"], ["stack", "--help"], ["stack", "status"]])
def test_only_what_the_command_needs_is_imported(words: list[str], tmp_path: Path) -> None:
    program = f"""
import sys
from watershed.cli.main import main
sys.argv = ["cdc", *{words!r}]
try:
    main()
finally:
    print("imported:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.splitlines()[-1] == "imported:", done.stderr


def test_the_list_of_commands_has_all_with_their_help() -> None:
    reported = CliRunner().invoke(application([]), ["--help"]).stdout
    for name in COMMANDS:
        assert name in reported
