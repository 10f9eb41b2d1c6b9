# Runs in the session of an episode: defines the state command, which prints the state as JSON.
def task_state() -> None:
    import json
    import os

    names = sorted(os.listdir())
    shown = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    print(json.dumps({"working_dir": os.getcwd(), "files": shown or "nothing"}))
