"""What both simulations need."""

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet(default_logging: None) -> None:
    """Thousands of loads and chunks would be logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
