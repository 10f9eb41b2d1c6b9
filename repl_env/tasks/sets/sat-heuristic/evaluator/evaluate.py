import random

VARIABLES, CLAUSES, FORMULAS = 28, 120, 8
MOST = 1_000  # decisions in all; a heuristic that needs more has this score

draw = random.Random(19).random


class OutOfDecisions(Exception):
    pass


class Solver:
    def __init__(self):
        self.decisions = 0

    def satisfiable(self, clauses):
        clauses = propagated(clauses)
        if clauses is None:
            return False
        if not clauses:
            return True
        literal = self.decided(clauses)
        return any(self.satisfiable([*clauses, [each]]) for each in (literal, -literal))

    def decided(self, clauses):
        if self.decisions >= MOST:
            raise OutOfDecisions
        self.decisions += 1
        literal = call("choose", [clauses])
        if type(literal) is not int or not any(literal in clause for clause in clauses):
            reject("choose() must return a literal that stands in the clauses")
        return literal


def propagated(clauses):
    """The clauses after unit propagation; None if one of them is empty."""
    while True:
        if any(not clause for clause in clauses):
            return None
        unit = next((clause[0] for clause in clauses if len(clause) == 1), None)
        if unit is None:
            return clauses
        clauses = [[each for each in c if each != -unit] for c in clauses if unit not in c]


def formula():
    clauses = []
    for _ in range(CLAUSES):
        variables = []
        while len(variables) < 3:
            variable = 1 + int(draw() * VARIABLES)
            if variable not in variables:
                variables.append(variable)
        clauses.append([each if draw() < 0.5 else -each for each in variables])
    return clauses


solver = Solver()
answers = []
try:
    for _ in range(FORMULAS):
        answers.append(solver.satisfiable(formula()))
except OutOfDecisions:
    pass
score(solver.decisions, {"satisfiable": answers})
