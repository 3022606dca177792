"""Counts what a call costs in Python instructions instead of seconds: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def operations(call: Callable[[], object]) -> int:
    """Instructions of Python code that `call` executes, in all functions that it calls. What is inside one call of
    compiled code counts as one."""
    count = 0
    if sys.version_info >= (3, 12):  # where a function that is traced again may report no instructions

        def add(_code: CodeType, _offset: int) -> None:
            nonlocal count
            count += 1

        monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "operations")
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, add)
        try:
            monitoring.set_events(tool, monitoring.events.INSTRUCTION)
            call()
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
        return count

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
