"""The independent judge: a plain consumer of the topics, which knows the record format from its description only.

It shares no code with capture (its tests hold it to that). Rules take what was read and yield complaints, one sentence
each; no complaint means that the rule holds. `judge.py` puts them together for a database and the topics of a prefix,
and needs nothing but the two: the source keeps a journal of its own changes (`journal.py`), in the same transactions.
"""
