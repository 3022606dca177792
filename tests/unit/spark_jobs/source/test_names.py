"""The names of the package spark_jobs.source."""

import ast
import inspect
import pkgutil

from spark_jobs import source


def test_no_function_has_the_name_of_a_module() -> None:
    """Python sets a module as an attribute of its package when it is imported, in place of what was there: whether
    `from spark_jobs.source import name` gave the function depended on what had been imported before."""
    modules = {module.name for module in pkgutil.iter_modules(source.__path__)}
    defined = {node.name for node in ast.parse(inspect.getsource(source)).body if isinstance(node, ast.FunctionDef)}
    assert "register" in defined and not defined & modules
