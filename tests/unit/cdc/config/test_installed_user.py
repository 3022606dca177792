"""Messages about the configuration name nothing that only a clone has."""

from pathlib import Path

import pytest

from cdc.config.config_file import load_config
from cdc.model.errors import ConfigError


@pytest.mark.parametrize("text", ["source: {table: [public.books]}\n", "\n"])
def test_the_next_step_is_a_command_of_the_wheel(text: str, tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    assert "`cdc config schema` lists all keys" in str(refused.value)
