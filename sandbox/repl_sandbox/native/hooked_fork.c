/* fork(3) between CPython's hooks, for a process with other threads. */
#include "export.h"
#include "fork.h"

/* Return the child's process id, 0 in the child, or a negative errno. The caller holds the GIL.
   No Python runs between fork(3) and the hooks after it: another thread may have asked for the GIL,
   and in the child the interpreter would give it up and wait for that thread, which is not there. */
EXPORT long fork_with_hooks(const struct hooked_fork *call) {
    call->before();
    int pid = call->fork();
    int error = pid < 0 ? *call->error : 0;
    if (pid == 0)
        call->after_in_child();
    else
        call->after_in_parent();
    return error ? -error : pid;
}
