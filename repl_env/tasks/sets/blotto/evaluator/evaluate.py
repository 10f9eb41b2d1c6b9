import random

FIELDS, SOLDIERS, GAMES, OPPONENTS = 6, 60, 24, 100
FAVOURED = (0.8, 0.15, 0.1, 0.6, 0.1, 0.15)  # how many of the opponents favour each field
draw = random.Random(77).random


def opponent():
    """Soldiers by weights, larger on the fields that this opponent favours."""
    weights = [0.6 + draw() + (2.0 if draw() < favoured else 0.0) for favoured in FAVOURED]
    shares = [int(SOLDIERS * weight / sum(weights)) for weight in weights]
    for _ in range(SOLDIERS - sum(shares)):
        shares[int(draw() * FIELDS)] += 1
    return shares


def checked(fields):
    whole = isinstance(fields, list) and all(type(each) is int and each >= 0 for each in fields)
    if not whole or len(fields) != FIELDS or sum(fields) != SOLDIERS:
        reject(f"allocate() must return {FIELDS} whole numbers with the sum {SOLDIERS}")
    return fields


def margin(mine, theirs):
    return sum((a > b) - (a < b) for a, b in zip(mine, theirs))


total = 0
for game in range(GAMES):
    mine = checked(call("allocate", [game]))
    total += sum(margin(mine, opponent()) for _ in range(OPPONENTS))
score(total / (GAMES * OPPONENTS * FIELDS))
