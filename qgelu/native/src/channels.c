#include "channels.h"

#include <inttypes.h>

bool qg_within(const struct qg_channels *input, int64_t low, int64_t high, struct qg_problem *problem) {
    for (size_t c = 0; c < input->count; c++)
        if (input->values[c] < low || input->values[c] > high)
            return qg_complain(problem,
                               "input '%s' is %" PRId32 " in channel %zu, beyond %" PRId64 " to %" PRId64
                               ": write the model again with qgelu",
                               input->name, input->values[c], c, low, high);
    return true;
}

int64_t qg_largest_magnitude(const struct qg_sums *sums, size_t channel) {
    int64_t bias = qg_at(&sums->bias, channel), high = qg_at(&sums->upper, channel);
    int64_t low = qg_at(&sums->lower, channel);
    if (low > high) low = high; /* the upper bound is applied last */
    int64_t down = -(low + bias), up = high + bias;
    int64_t largest = down > up ? down : up;
    return largest > 0 ? largest * ((int64_t)1 << qg_at(&sums->left_shift, channel)) : 0;
}
