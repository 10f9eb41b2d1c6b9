def choose(clauses):
    """A variable that is frequent in short clauses, by both signs, as Jeroslow and Wang have it."""
    weights = {}
    for clause in clauses:
        for literal in clause:
            weights[literal] = weights.get(literal, 0.0) + 5.0 ** -len(clause)

    def both(literal):
        one, other = weights.get(literal, 0.0), weights.get(-literal, 0.0)
        return 1024 * one * other + one + other

    return max(sorted(weights), key=both)
