/* What is wrong with an op's inputs, in words. */
#ifndef QGELU_PROBLEM_H
#define QGELU_PROBLEM_H

#include <stdbool.h>

struct qg_problem {
    char message[320]; /* empty if there is none */
};

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 2, 3)))
#endif
/* Writes the message, and returns false. */
bool qg_complain(struct qg_problem *problem, const char *format, ...);

#endif
