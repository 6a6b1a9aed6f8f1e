#include "problem.h"

#include <stdarg.h>
#include <stdio.h>

bool qg_complain(struct qg_problem *problem, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->message, sizeof problem->message, format, arguments);
    va_end(arguments);
    return false;
}
