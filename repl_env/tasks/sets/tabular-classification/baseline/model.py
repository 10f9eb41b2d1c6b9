import csv
from collections import Counter

with open("data/train.csv", newline="") as file:
    ROWS = list(csv.reader(file))[1:]
COMMON = Counter(row[-1] for row in ROWS).most_common(1)[0][0]


def predict(rows):
    """A kind for each row."""
    return [COMMON for _ in rows]
