/* The sources and the compiler that this library was built from, as library.py reads them. */
#include "export.h"

#ifndef REPL_BUILD_HASH
#error "compile by `make native`, which defines REPL_BUILD_HASH"
#endif

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

EXPORT const char repl_native_build[] =
    "repl-env native build " REPL_BUILD_HASH " by " COMPILER;
