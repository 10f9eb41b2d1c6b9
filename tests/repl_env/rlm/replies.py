"""Replies of scripted models, and the requests that a model receives."""


def code(*blocks):
    """A reply with these code blocks."""
    return "\n\n".join(f"```repl\n{block}\n```" for block in blocks)


def last_message(request):
    return request.messages[-1]["content"]
