"""Errors as users read them."""

from cdc.model.errors import ConfigError, GapError, WatershedError


def test_an_error_says_what_happened_and_the_next_step() -> None:
    error = WatershedError("the slot is gone", "run cdc check")
    assert str(error) == "the slot is gone\n  next: run cdc check"
    assert (error.message, error.hint) == ("the slot is gone", "run cdc check")


def test_without_a_next_step_it_is_one_line() -> None:
    assert str(GapError("the slot is gone")) == "the slot is gone"


def test_a_configuration_error_has_its_own_exit_code() -> None:
    assert (ConfigError.exit_code, GapError.exit_code) == (2, 4)
