"""Analyse a CSV file in a session and keep the plot."""

import tempfile
from pathlib import Path

from repl_env import Sandbox

TABLE = "month,sales\n" + "".join(f"2024-{n:02d},{100 + n * n}\n" for n in range(1, 13))

# Cells that a model might write; the variables stay from one to the next.
CELLS = (
    "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nlen(rows), rows[0]",
    "sales = [int(row['sales']) for row in rows]\nprint('mean', sum(sales) / len(sales))",
    "import matplotlib.pyplot as plt\nplt.plot(sales)\nplt.title('Sales').get_text()",
    "open('summary.txt', 'w').write(f'best month: {sales.index(max(sales)) + 1}')",
)

folder = Path(tempfile.mkdtemp())
with Sandbox(preload=["matplotlib.pyplot"]) as sandbox, sandbox.session() as session:
    session.files.put("sales.csv", TABLE.encode())
    for code in CELLS:
        outcome = session.run(code)
        print(outcome.value or outcome.stdout.strip())
        for number, png in enumerate(outcome.figures):
            (folder / f"figure{number}.png").write_bytes(png)
    print(session.files.get("summary.txt").decode())
print(sorted(path.name for path in folder.iterdir()))
