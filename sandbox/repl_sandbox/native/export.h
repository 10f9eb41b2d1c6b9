/* Marks a function or constant that Python looks up by name; all others stay inside the library. */
#ifndef REPL_EXPORT_H
#define REPL_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
