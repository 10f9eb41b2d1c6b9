/* The hash of the sources, and the compiler, of this library; library.py reads them. */
#include "export.h"

#ifndef REPL_BUILD_HASH
#error "REPL_BUILD_HASH is not defined; compile with `make native`"
#endif

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

EXPORT const char repl_native_build[] =
    "repl-env native build " REPL_BUILD_HASH " by " COMPILER;
