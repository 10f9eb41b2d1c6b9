# Runs in the session of an episode: the two functions that a policy calls. The files are read here,
# as the host cannot while a cell runs, and are all that the host takes from them.
def validate():
    """Evaluate the submission as it is in the working directory; tells its score."""
    return validate_files(_task_read())


def submit():
    """Hand in the submission as it is, and end the episode."""
    report = submit_files(_task_read())
    FINAL("submitted")
    return report


def _task_read():
    import base64

    found = {}
    for path in _task_paths:
        try:
            with open(path, "rb") as file:
                found[path] = base64.b64encode(file.read(_task_max_bytes + 1)).decode("ascii")
        except OSError:
            pass
    return found
