"""The rules about docstrings and parameters can fail."""

from pathlib import PurePosixPath

import pytest

from tests.tidy import PARAMETERS_MAX, Source, docstrings_are_sentences, parameters_are_few


def python(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text)


def test_wide_functions_are_found() -> None:
    def method(count: int) -> Source:
        names = ", ".join(f"p{number}" for number in range(count))
        return python("cdc/x.py", f"class A:\n    def f(self, {names}, *, key=None): ...\n")

    excuse = {"cdc/x.py::f": "a command"}
    assert list(parameters_are_few(method(PARAMETERS_MAX), {})), "keywords count"
    assert list(parameters_are_few(method(PARAMETERS_MAX - 1), {})) == []
    assert list(parameters_are_few(method(PARAMETERS_MAX), excuse)) == []
    assert list(parameters_are_few(method(PARAMETERS_MAX - 1), excuse)), "an old exception"


@pytest.mark.parametrize(
    ("path", "docstring", "is_kept"),
    [
        ("cdc/x.py", "Of the table.", False),
        ("cdc/x.py", "Whether it is so.", False),
        ("cdc/x.py", "What, and why.", False),
        ("cdc/x.py", "Returns the table. It is read anew.", False),
        ("cdc/x.py", "Offsets of the table.", True),
        ("cdc/x.py", "Returns whether it is so, as was said: the number is untouched.", True),
        ("tests/unit/test_x.py", "Whether it is so.", True),
    ],
)
def test_fragments_and_private_words_in_docstrings_are_found(path: str, docstring: str, is_kept: bool) -> None:
    source = python(path, f'"""Module."""\n\ndef f():\n    """{docstring}"""\n')
    assert (list(docstrings_are_sentences(source)) == []) is is_kept
