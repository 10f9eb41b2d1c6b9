import csv

with open("data/train.csv", newline="") as file:
    ROWS = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
MEAN = sum(row[-1] for row in ROWS) / len(ROWS)


def predict(rows):
    """A prediction for each row."""
    return [MEAN for _ in rows]
