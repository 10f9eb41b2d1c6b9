import json

with open("answers.json") as file:
    right = json.load(file)
text = read("answers.json")
if len(text) > 100_000:
    reject("answers.json is longer than any list of answers")
try:
    given = json.loads(text)
except (ValueError, RecursionError) as error:
    reject(f"answers.json is no JSON: {error}")
if not isinstance(given, list) or len(given) != len(right):
    reject(f"answers.json must be a list of {len(right)} answers")


def same(one, other):
    # Whole numbers of any size are texts of any size, so their length is looked at first.
    if (type(one) is int and abs(one) > 10**9) or type(one) not in (int, str):
        return False
    return str(one).strip().lower() == str(other).strip().lower()


score(sum(same(one, other) for one, other in zip(given, right)) / len(right))
