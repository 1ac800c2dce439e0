"""Pictures and pages of DAGs, from plain numbers: `Dag.draw`, `DagNN.draw` and their `write_page` call it.

It imports nothing of ours but the errors, so graphs, networks and edit paths may all be drawn with it.
"""

__all__: list[str] = []
