"""`REPLGRPOTrainer`: TRL's `GRPOTrainer`, whose loss leaves masked rollouts out altogether."""

from __future__ import annotations

from typing import Any

from repl_env.common.display import set_module
from repl_env.env.rollouts import EpisodeShares, summary_columns
from repl_env.integrations import needing
from repl_env.integrations.trl_rewards import MASKED_COLUMN, episodes_of, log_shares

with needing("TRL: pip install 'repl-env[trl]'", "torch", "trl"):
    import torch
    from trl import GRPOTrainer

# Losses that are means over rollouts, or over a fixed number of tokens for each.
_BY_ROLLOUT = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})


@set_module("repl_env.integrations.trl")
class REPLGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose updates are the same with a masked rollout as without that rollout.

    TRL gives a rollout without a reward the advantage 0, but goes on to count it in the mean of
    the loss, so that each masked rollout makes the update smaller; and with `beta` its divergence
    is trained on. Here its tokens are masked, and the mean is over the others. The arguments are
    those of `GRPOTrainer`, with `environment_factory=REPLToolEnv` or a `rollout_func` of ours. The
    logs have the shares of rollouts that are masked, answered and failed, the latter by the kind
    too. Reward functions get the columns `episode_answer` and so on, unwrapped ones as well.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._shares = EpisodeShares()
        super().__init__(*arguments, **options)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *arguments: Any) -> Any:
        episodes = episodes_of(self.environments)
        if episodes:  # a `rollout_func` of ours adds the columns and logs by itself
            columns = summary_columns(episodes)
            inputs = [
                {**row, **{name: column[number] for name, column in columns.items()}}
                for number, row in enumerate(inputs)
            ]
            log_shares(self, self._shares, episodes)
        return super()._calculate_rewards(inputs, *arguments)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.environments:
            masked = [bool(getattr(each, "masked", False)) for each in self.environments]
        else:
            masked = [bool(each.get(MASKED_COLUMN)) for each in inputs]
        included = ~torch.tensor(masked, device=output["completion_mask"].device)
        everywhere = self.accelerator.gather(included)
        if not everywhere.all():
            self._leave_out(output, included, int(everywhere.sum()), len(everywhere))
        return output

    def _leave_out(self, output: dict[str, Any], included: Any, count: int, of: int) -> None:
        """Take the rollouts that are not `included`, all but `count` of `of`, out of the loss."""
        mask = output.get("tool_mask", torch.ones_like(output["completion_mask"]))
        output["tool_mask"] = mask * included.unsqueeze(1)
        counted = (output["completion_mask"] * output["tool_mask"]).sum()
        output["num_items_in_batch"] = self.accelerator.gather(counted).sum()
        if self.loss_type in _BY_ROLLOUT and count:
            output["advantages"] = output["advantages"] * (of / count)
