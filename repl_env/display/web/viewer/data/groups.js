// The runs of a listing, and their groups: the samples, or rollouts, of one task.

import { isNumber } from "../../shared/format.js";

export function runsOf(listing) {
  return listing.files.filter((file) => file.kind === "trajectory").flatMap((file) => file.roots.map((root) => ({
    ...root, file: file.id, name: file.name, key: `${file.id}:${root.run}`, several: file.roots.length > 1,
    stop: root.done ? root.stop_reason ?? "" : "running", error: root.error_kind ?? "",
    usd: root.total?.usd,
  })));
}

export function mean(values) {
  const given = values.filter(isNumber);
  return given.length === 0 ? null : given.reduce((sum, each) => sum + each, 0) / given.length;
}

// [{ id, runs, rewards, mean, spread, task, question, time }], the newest first. `spread` is that of the
// rewards: where all are the same, an update by the differences in a group learns nothing.
export function groupsOf(runs) {
  const found = new Map();
  for (const run of runs) {
    if (!run.group) continue;
    if (!found.has(run.group)) found.set(run.group, []);
    found.get(run.group).push(run);
  }
  const groups = [...found].map(([id, members]) => {
    const rewards = members.map((run) => run.reward).filter(isNumber);
    return {
      id, runs: members, rewards, mean: mean(rewards),
      spread: rewards.length === 0 ? null : Math.max(...rewards) - Math.min(...rewards),
      task: members[0].task, question: members[0].question, time: Math.max(...members.map((run) => run.time ?? 0)),
    };
  });
  return groups.sort((a, b) => b.time - a.time);
}
