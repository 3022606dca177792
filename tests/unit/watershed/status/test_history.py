"""What earlier observations tell."""

from watershed.status.history import KEPT_S, PAGE_HEADER_BYTES, ObservationHistory


def observed(*ends: tuple[float, int], epoch: int = 1) -> ObservationHistory:
    history = ObservationHistory()
    for now, lsn in ends:
        history.observe_end(now, (epoch, lsn))
    return history


def test_a_lag_is_as_old_as_the_first_end_behind_the_position() -> None:
    history = observed((1.0, 1000), (2.0, 5000), (3.0, 9000))
    assert history.behind_s((1, 9000), 3.5) == (0.0, True)
    assert history.behind_s((1, 6000), 3.5) == (0.5, True)
    assert history.behind_s((1, 1000), 3.5) == (1.5, True)


def test_a_lag_that_began_before_the_first_observation_is_at_least_so_old() -> None:
    assert observed((1.0, 5000), (2.0, 9000)).behind_s((1, 1000), 4.0) == (3.0, False)


def test_a_page_header_that_no_record_has_reached_is_no_lag() -> None:
    assert observed((1.0, 1000)).behind_s((1, 1000 - PAGE_HEADER_BYTES), 9.0) == (0.0, True)
    assert observed((1.0, 1000)).behind_s((1, 999 - PAGE_HEADER_BYTES), 9.0)[0] == 8.0


def test_another_epoch_is_behind_whatever_its_lsn() -> None:
    assert observed((1.0, 1000), epoch=2).behind_s((1, 5000), 3.0) == (2.0, False)


def test_the_rate_of_wal_is_measured_between_observations() -> None:
    assert observed((1.0, 1000)).wal_rate(1.0) is None
    assert observed((1.0, 1000), (3.0, 5000)).wal_rate(3.0) == 2000.0
    assert observed((1.0, 1000), (100.0, 5000), (102.0, 5400)).wal_rate(102.0) == 200.0, "of the last minute"


def test_a_log_that_goes_back_is_another_history() -> None:
    history = observed((1.0, 9000), (2.0, 1000), (3.0, 3000))
    assert history.wal_rate(3.0) == 2000.0
    assert history.behind_s((1, 3000), 3.0) == (0.0, True)


def test_what_is_older_than_the_longest_lag_is_forgotten() -> None:
    history = observed((1.0, 1000), (2.0, 5000), (KEPT_S + 10, 9000))
    assert history.behind_s((1, 0), KEPT_S + 10) == (KEPT_S + 8, False)


def test_silence_counts_from_the_last_change() -> None:
    history = ObservationHistory()
    assert history.silent_s("a", 1, 5.0) == 0.0
    assert history.silent_s("a", 1, 7.0) == 2.0
    assert history.silent_s("b", 1, 7.0) == 0.0
    assert history.silent_s("a", 2, 8.0) == 0.0


def test_silence_from_before_the_first_observation_counts_until_something_moves() -> None:
    history = ObservationHistory()
    assert history.silent_s("a", 1, 5.0, 60.0) == 60.0
    assert history.silent_s("a", 1, 6.0, 61.0) == 61.0
    assert history.silent_s("a", 2, 7.0, 0.5) == 0.0
    assert history.silent_s("a", 2, 8.0, 100.0) == 1.0
