/* Marks a function or constant that Python looks up by name; others are local to the library. */
#ifndef REPL_EXPORT_H
#define REPL_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
