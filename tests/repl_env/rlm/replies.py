"""Replies of scripted models, and the requests that a model receives."""

from repl_env.rlm import ScriptedModel


def code(*blocks):
    """A reply with these code blocks."""
    return "\n\n".join(f"```repl\n{block}\n```" for block in blocks)


def last_message(request):
    return request.messages[-1]["content"]


def tree(root, child=None, query=None):
    """A model that plays these replies at the root and in children, and answers queries."""

    def answer(request):
        origin = request.origin
        if origin.purpose in ("query", "repair"):
            return query(request) if callable(query) else query or "an answer"
        replies = root if "." not in origin.run else child
        return replies(request) if callable(replies) else replies[origin.number - 1]

    return ScriptedModel(answer)
