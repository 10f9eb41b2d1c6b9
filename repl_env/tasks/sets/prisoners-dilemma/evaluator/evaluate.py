import random

ROUNDS = 40
POINTS = {("C", "C"): 3, ("C", "D"): 0, ("D", "C"): 5, ("D", "D"): 1}


def tit_for_tat(mine, theirs, draw):
    return theirs[-1] if theirs else "C"


def patient(mine, theirs, draw):
    return "D" if theirs[-2:] == ["D", "D"] else "C"


def grudger(mine, theirs, draw):
    return "D" if theirs.count("D") > 3 else "C"


def cooperator(mine, theirs, draw):
    return "C"


def defector(mine, theirs, draw):
    return "D"


def generous(mine, theirs, draw):
    return "C" if not theirs or theirs[-1] == "C" or draw() < 0.3 else "D"


OPPONENTS = (tit_for_tat, patient, grudger, cooperator, defector, generous)


def play(opponent, draw):
    mine, theirs, points = [], [], 0
    for _ in range(ROUNDS):
        answer = opponent(theirs, mine, draw)
        chosen = call("move", [mine, theirs])
        if chosen not in ("C", "D"):
            reject('move() must return "C" or "D"')
        points += POINTS[chosen, answer]
        mine.append(chosen)
        theirs.append(answer)
    return points / ROUNDS


draw = random.Random(2024).random
means = {opponent.__name__: play(opponent, draw) for opponent in OPPONENTS}
score(sum(means.values()) / len(means), means)
