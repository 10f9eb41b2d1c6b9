import csv
from itertools import combinations_with_replacement

with open("data/train.csv", newline="") as file:
    ROWS = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
RIDGE = 1e-3


def features(row):
    """One, the numbers, and all their products of two."""
    return [1.0, *row, *(a * b for a, b in combinations_with_replacement(row, 2))]


def solved(matrix, vector):
    """The solution of a system of linear equations, by elimination."""
    rows = [[*line, value] for line, value in zip(matrix, vector)]
    for at in range(len(rows)):
        pivot = max(range(at, len(rows)), key=lambda n: abs(rows[n][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(at + 1, len(rows)):
            factor = rows[below][at] / rows[at][at]
            for column in range(at, len(rows) + 1):
                rows[below][column] -= factor * rows[at][column]
    found = [0.0] * len(rows)
    for at in reversed(range(len(rows))):
        known = sum(rows[at][n] * found[n] for n in range(at + 1, len(rows)))
        found[at] = (rows[at][-1] - known) / rows[at][at]
    return found


def fitted(inputs, targets):
    """The weights of a ridge regression."""
    size = len(inputs[0])
    matrix = [[sum(x[i] * x[j] for x in inputs) for j in range(size)] for i in range(size)]
    for at in range(size):
        matrix[at][at] += RIDGE
    return solved(matrix, [sum(x[i] * y for x, y in zip(inputs, targets)) for i in range(size)])


WEIGHTS = fitted([features(row[:-1]) for row in ROWS], [row[-1] for row in ROWS])


def predict(rows):
    """A prediction for each row."""
    return [sum(w * x for w, x in zip(WEIGHTS, features(row))) for row in rows]
