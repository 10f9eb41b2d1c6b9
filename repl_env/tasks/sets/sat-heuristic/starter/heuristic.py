def choose(clauses):
    """The literal to make true: the first."""
    return clauses[0][0]
