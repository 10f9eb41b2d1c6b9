"""The action of a policy's reply, by the rules of RLM runs."""

from __future__ import annotations

from collections.abc import Collection

from repl_env.common.json_values import replace_surrogates
from repl_env.env.lifecycle.block_steps import blocks_action
from repl_env.models import REPLAction
from repl_env.parsing.reply_reader import read_reply
from repl_env.rlm.feedback import NO_CODE, TOO_MANY
from repl_env.rlm.run.reply_runner import MAX_BLOCKS


def action_of_reply(reply: str, known: Collection[str] = ()) -> REPLAction:
    """Return the action of a reply, which may be any text; no text raises.

    The code blocks of the reply run in order as one step. An answer in prose, such as `FINAL(42)`,
    is submitted, or evaluated in the session if it reads variables, whose names are `known`. A
    reply with neither is a `format_error`. Blocks beyond `MAX_BLOCKS` are left out, as
    `metadata["note"]` of the action then says.

    Raises:
        TypeError: the reply is not a str.
    """
    if not isinstance(reply, str):
        raise TypeError(f"a reply must be a str, not {type(reply).__name__}")
    parsed_reply = read_reply(replace_surrogates(reply), known)
    answer, codes = parsed_reply.answer, parsed_reply.codes
    if answer is not None and not (answer.is_variable or answer.is_code):
        return REPLAction(is_final=True, final_answer=answer.text)
    if answer is not None:
        code = f'FINAL_VAR("{answer.text}")' if answer.is_variable else answer.text
        return REPLAction(code=code)
    if not codes:
        return REPLAction(format_error=NO_CODE)
    action = blocks_action(codes[:MAX_BLOCKS])
    if len(codes) > MAX_BLOCKS:
        action.metadata["note"] = TOO_MANY.format(MAX_BLOCKS, len(codes))
    return action
