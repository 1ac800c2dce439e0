"""What tests of readers ask of a Dag and of the report on how it was read."""


def edges_of(dag):
    return {(dag.name_of(u), dag.name_of(v)) for u, v in dag.edges.tolist()}


def inputs_of(dag):
    return [dag.name_of(node) for node in dag.inputs.tolist()]


def adds_up(report):
    """What came in and what was added is what is left and what was dropped."""
    return report.nodes_read + report.nodes_added == report.nodes + report.count(
        "nodes"
    ) and report.edges_read + report.edges_added == report.edges + report.count("edges")
