"""The verbs of the Makefile, as far as they can be seen without running them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = {
    *(
        "help",
        "setup",
        "check",
        "test",
        "test-fast",
        "test-whole",
        "docs",
        "release",
        "demo",
        "snapshot",
        "prove",
        "prove-long",
        "bench",
        "bench-sinks",
    ),
    *("stack", "up", "down", "lock", "clean", "helm"),
}


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Of an outer make, which may be running us, nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def message(*arguments: str) -> str:
    done = make(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_tells_every_verb() -> None:
    reported = dict(line.split(maxsplit=1) for line in message("help").splitlines())
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert set(reported) == set(phony[1].split()) == VERBS
    assert message() == message("help"), "help is what a bare `make` does"


def test_a_verb_prepares_what_it_needs() -> None:
    for verb in ("test", "test-whole", "demo", "snapshot", "prove", "prove-long", "bench", "bench-sinks", "stack"):
        assert re.search(rf"^{verb}: setup", MAKEFILE, re.MULTILINE), verb


def test_the_demos_settings_reach_the_command() -> None:
    assert "cdc demo --seconds 120 --hold 0 --chaos\n" in message("-n", "demo")
    assert "cdc demo --seconds 120 --hold 0 --chaos --keep\n" in message("-n", "demo", "KEEP=1")
    assert "cdc demo --seconds 30 --hold 5 --no-chaos\n" in message("-n", "demo", "SECONDS=30", "CHAOS=0", "HOLD=5")


def test_a_release_is_of_the_commit_unless_it_is_tried() -> None:
    assert "python -m deploy.release\n" in message("-n", "release")
    assert "python -m deploy.release --dry-run\n" in message("-n", "release", "DRY=1")


def test_a_snapshot_without_a_configuration_is_of_the_demo() -> None:
    assert "cdc demo --bootstrap warehouse --seconds 120 --no-chaos\n" in message("-n", "snapshot")
    assert "cdc demo --bootstrap search --seconds 30 --chaos\n" in message(
        "-n", "snapshot", "SINK=search", "SECONDS=30", "CHAOS=1"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ""),
        (["TABLE=public.a public.b"], " --table public.a --table public.b"),
        (["SINK=search cache"], " --sink search --sink cache"),
        (["SINK=search", "TABLE=public.a"], " --table public.a --sink search --fresh"),
    ],
)
def test_a_snapshots_settings_reach_the_command(settings: list[str], expected: str) -> None:
    reported = " ".join(message("-n", "snapshot", "CONFIG=shop.yml", *settings).replace("\\\n", " ").split())
    assert reported.endswith(f"cdc snapshot start --config shop.yml{expected}")


def test_the_long_proofs_are_the_campaigns_and_the_whole_models() -> None:
    reported = message("-n", "prove-long", "bench-sinks", "MINUTES=5", "CHUNKS=400")
    assert "python -m tests.faults.snapshot_campaign --chunks 400\n" in reported
    assert "python -m tests.faults.campaign --minutes 5 --folder .watershed/campaign\n" in reported
    assert "python -m tests.faults.hole_campaign --minutes 5\n" in reported
    assert "python -m tests.faults.schema_campaign --minutes 5\n" in reported
    assert "python -m tests.faults.toast_campaign --minutes 5\n" in reported
    assert "python -m tests.faults.large_campaign --rows 10000000\n" in reported
    assert "python -m tests.faults.outbox_campaign --minutes 5\n" in reported
    assert "python -m tests.faults.mixed_campaign --minutes 5\n" in reported
    assert "python -m tests.simulation.mixed --minutes 5\n" in reported
    assert "python -m tests.faults.sink_campaign --minutes 5\n" in reported
    assert "python -m tests.faults.rebuild_campaign\n" in reported
    assert "python -m tests.models --whole\n" in reported


def test_the_benchmarks_parts_and_size_reach_it() -> None:
    assert "python -m tests.bench.public \n" in message("-n", "bench")
    assert "python -m tests.bench.public catchup latency --quick\n" in message(
        "-n", "bench", "PARTS=catchup latency", "QUICK=1"
    )
    assert "python -m tests.bench.public  --large-rows 5000000\n" in message("-n", "bench", "LARGE_ROWS=5000000")


def test_one_promise_can_be_asked_for() -> None:
    assert re.search(r"pytest .* -m 'not long' --prove *\n", message("-n", "prove"))
    assert " --prove 1\n" in message("-n", "prove", "P=1")
    assert " --prove I9\n" in message("-n", "prove", "I=9")


def test_a_missing_python_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    done = make(".venv/bin/python", "PYTHON=/bin/false", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("There is no Python 3.11 or newer")
    assert "  next: " in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_both_tiers_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert script.read_text(encoding="utf-8").splitlines()[-2:] == [
        "make test </dev/null",
        "exec make test-whole </dev/null",
    ]


def test_prove_long_runs_every_campaign() -> None:
    commands = message("-n", "prove-long")
    campaigns = sorted(path.stem for path in (ROOT / "tests/faults").glob("*campaign.py"))
    assert len(campaigns) > 10
    assert [name for name in campaigns if f"python -m tests.faults.{name}" not in commands] == []
