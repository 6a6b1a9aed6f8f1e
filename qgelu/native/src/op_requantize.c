/* RequantizeGelu: int32 accumulators plus a bias to codes. The type of input 9 tells the two arithmetics apart: it is
   the wide one's offset, int64, or an int32 of the narrow one. */
#include <stdlib.h>

#include "cpu.h"
#include "narrow.h"
#include "op.h"
#include "wide.h"

enum { ACCUMULATOR = 0, BIAS, LOWER, UPPER, LEFT_SHIFT, BODY = 9, COEFFICIENTS = 11, MINIMUM, MAXIMUM, INPUTS };

static const char *const narrow_names[INPUTS] = {
    "accumulator",    "bias",       "lower",           "upper",
    "left_shift",     "linear_shift", "linear_multiplier", "argument_shift",
    "argument_multiplier", "tail_multiplier", "offset", "coefficients",
    "code_minimum",   "code_maximum"};
static const char *const wide_names[INPUTS] = {
    "accumulator",   "bias",              "lower",          "upper",
    "left_shift",    "argument_multiplier", "argument_shift", "linear_multiplier",
    "tail_multiplier", "offset",          "output_shift",   "coefficients",
    "code_minimum",  "code_maximum"};

/* Accumulators worth a thread's start. */
enum { PIECE = 1 << 16 };

struct prepared {
    size_t channels;
    struct qg_narrow *narrow; /* one of the two, or none */
    struct qg_wide *wide;
};

struct kernel {
    const OrtApi *api;
    struct qg_cpu cpu;
    int to;
    struct prepared prepared; /* if all parameters are constants */
};

/* The inputs after the first, under the names of the body that they belong to. */
struct parameters {
    bool wide;
    struct qg_tensor tensors[INPUTS];
};

static void name_tensors(struct parameters *parameters) {
    parameters->wide = parameters->tensors[BODY].type == QG_ORT_INT64;
    for (size_t k = 0; k < INPUTS; k++)
        parameters->tensors[k].name = (parameters->wide ? wide_names : narrow_names)[k];
}

static bool is_per_channel(size_t index) {
    return index >= BIAS && index < COEFFICIENTS;
}

static bool check_shapes(const struct parameters *parameters, size_t *channels, struct qg_problem *problem) {
    *channels = 1;
    for (size_t k = BIAS; k < INPUTS; k++) {
        const struct qg_tensor *tensor = &parameters->tensors[k];
        int type = parameters->wide && k == BODY ? QG_ORT_INT64 : QG_ORT_INT32;
        if (tensor->type != type)
            return qg_complain(problem, "input '%s' is %s: give %s", tensor->name, qg_type_name(tensor->type),
                               qg_type_name(type));
        if (is_per_channel(k)) {
            if (tensor->rank > 1 || tensor->count == 0)
                return qg_complain(problem, "input '%s' has rank %zu and %zu entries: give rank 1, and one for each "
                                   "channel or one for all", tensor->name, tensor->rank, tensor->count);
            if (tensor->count > 1 && *channels > 1 && tensor->count != *channels)
                return qg_complain(problem, "input '%s' has %zu entries, but others have %zu: give one for each channel "
                                   "or one for all", tensor->name, tensor->count, *channels);
            if (tensor->count > 1) *channels = tensor->count;
        } else if (k > COEFFICIENTS && (tensor->rank > 1 || tensor->count != 1)) {
            return qg_complain(problem, "input '%s' has %zu entries: give a single one", tensor->name, tensor->count);
        }
    }
    const struct qg_tensor *coefficients = &parameters->tensors[COEFFICIENTS];
    int64_t rows = parameters->wide ? 32 : 16, columns = parameters->wide ? 5 : 4;
    if (coefficients->rank != 2 || coefficients->dimensions[0] != rows || coefficients->dimensions[1] != columns)
        return qg_complain(problem, "input 'coefficients' has rank %zu and %zu entries: give shape [%d, %d]",
                           coefficients->rank, coefficients->count, (int)rows, (int)columns);
    return true;
}

static struct qg_channels per_channel(const struct parameters *parameters, size_t index) {
    const struct qg_tensor *tensor = &parameters->tensors[index];
    return (struct qg_channels){tensor->name, tensor->data, tensor->count};
}

static struct qg_sums sums(const struct parameters *parameters) {
    return (struct qg_sums){per_channel(parameters, BIAS), per_channel(parameters, LOWER),
                            per_channel(parameters, UPPER), per_channel(parameters, LEFT_SHIFT)};
}

static bool prepare_narrow(const struct kernel *kernel, const struct parameters *parameters, struct prepared *prepared,
                           int32_t minimum, int32_t maximum, struct qg_problem *problem) {
    if (qg_code_bytes(kernel->to) != 1)
        return qg_complain(problem, "attribute 'to' says %s, but these inputs are for codes of 8 bits: use int8 or uint8",
                           qg_type_name(kernel->to));
    const struct qg_narrow_input input = {
        .channels = prepared->channels,
        .sums = sums(parameters),
        .linear_shift = per_channel(parameters, 5),
        .linear_multiplier = per_channel(parameters, 6),
        .argument_shift = per_channel(parameters, 7),
        .argument_multiplier = per_channel(parameters, 8),
        .tail_multiplier = per_channel(parameters, 9),
        .offset = per_channel(parameters, 10),
        .coefficients = parameters->tensors[COEFFICIENTS].data,
        .code_minimum = minimum,
        .code_maximum = maximum,
    };
    prepared->narrow = qg_prepare_narrow(&input, &kernel->cpu, problem);
    return prepared->narrow != NULL;
}

static bool prepare_wide(const struct kernel *kernel, const struct parameters *parameters, struct prepared *prepared,
                         int32_t minimum, int32_t maximum, struct qg_problem *problem) {
    const struct qg_wide_input input = {
        .channels = prepared->channels,
        .sums = sums(parameters),
        .argument_multiplier = per_channel(parameters, 5),
        .argument_shift = per_channel(parameters, 6),
        .linear_multiplier = per_channel(parameters, 7),
        .tail_multiplier = per_channel(parameters, 8),
        .offset = parameters->tensors[BODY].data,
        .offset_count = parameters->tensors[BODY].count,
        .output_shift = per_channel(parameters, 10),
        .coefficients = parameters->tensors[COEFFICIENTS].data,
        .code_minimum = minimum,
        .code_maximum = maximum,
        .code_bytes = qg_code_bytes(kernel->to),
    };
    prepared->wide = qg_prepare_wide(&input, &kernel->cpu, problem);
    return prepared->wide != NULL;
}

static void discard(struct prepared *prepared) {
    qg_free_narrow(prepared->narrow);
    qg_free_wide(prepared->wide);
    *prepared = (struct prepared){0};
}

static OrtStatus *prepare(const struct kernel *kernel, struct parameters *parameters, struct prepared *prepared) {
    struct qg_problem problem;
    name_tensors(parameters);
    if (!check_shapes(parameters, &prepared->channels, &problem)) return qg_status(kernel->api, &problem);
    int32_t minimum = *(const int32_t *)parameters->tensors[MINIMUM].data;
    int32_t maximum = *(const int32_t *)parameters->tensors[MAXIMUM].data;
    bool fits = minimum >= qg_code_minimum(kernel->to) && maximum <= qg_code_maximum(kernel->to) && minimum <= maximum;
    if (!fits)
        qg_complain(&problem, "inputs 'code_minimum' and 'code_maximum' are %d and %d: give a range within %s",
                    (int)minimum, (int)maximum, qg_type_name(kernel->to));
    if (!fits || !(parameters->wide ? prepare_wide : prepare_narrow)(kernel, parameters, prepared, minimum, maximum,
                                                                     &problem))
        return qg_status(kernel->api, &problem);
    return NULL;
}

static void QG_ORT_CALL destroy(void *data) {
    struct kernel *kernel = data;
    if (kernel != NULL) discard(&kernel->prepared);
    free(kernel);
}

static OrtStatus *fill(struct kernel *kernel, const OrtKernelInfo *info, struct parameters *parameters) {
    struct qg_problem problem;
    const char *wrong = qg_find_cpu(&kernel->cpu);
    if (wrong != NULL) {
        qg_complain(&problem, "%s", wrong);
        return qg_status(kernel->api, &problem);
    }
    QG_TRY(qg_read_to(kernel->api, info, &kernel->to));
    bool constant = true;
    for (size_t k = BIAS; k < INPUTS && constant; k++) {
        QG_TRY(qg_read_constant(kernel->api, info, k, narrow_names[k], &parameters->tensors[k]));
        constant = parameters->tensors[k].data != NULL;
    }
    return constant ? prepare(kernel, parameters, &kernel->prepared) : NULL;
}

static OrtStatus *QG_ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **out) {
    (void)op;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    struct parameters *parameters = calloc(1, sizeof *parameters);
    OrtStatus *status = NULL;
    if (kernel != NULL) kernel->api = api;
    if (kernel == NULL || parameters == NULL)
        status = qg_out_of_memory(api);
    else
        status = fill(kernel, info, parameters);
    free(parameters);
    if (status != NULL) {
        destroy(kernel);
        kernel = NULL;
    }
    *out = kernel;
    return status;
}

struct work {
    const struct qg_blocks *blocks;
    const int32_t *accumulator;
    unsigned char *out;
    size_t count, piece; /* a whole number of rows */
};

static void run_piece(void *data, size_t k) {
    const struct work *work = data;
    size_t first = k * work->piece;
    size_t count = work->count - first < work->piece ? work->count - first : work->piece;
    qg_run_blocks(work->blocks, work->accumulator + first, work->out + first * work->blocks->code_bytes, count);
}

static OrtStatus *run(const struct kernel *kernel, OrtKernelContext *context, const struct qg_tensor *accumulator,
                      const struct prepared *prepared) {
    int64_t last = accumulator->dimensions[accumulator->rank - 1];
    if (prepared->channels > 1 && (int64_t)prepared->channels != last) {
        struct qg_problem problem;
        qg_complain(&problem, "input 'accumulator' has %lld channels, its last axis, but the parameters have %zu: they "
                    "belong to another layer", (long long)last, prepared->channels);
        return qg_status(kernel->api, &problem);
    }
    void *out = NULL;
    QG_TRY(qg_make_output(kernel->api, context, accumulator, kernel->to, &out));
    struct work work = {.accumulator = accumulator->data, .out = out, .count = accumulator->count};
    work.blocks = prepared->wide != NULL ? &prepared->wide->blocks : &prepared->narrow->blocks;
    size_t width = work.blocks->width;
    work.piece = (PIECE + width - 1) / width * width;
    return qg_run_pieces(kernel->api, context, (work.count + work.piece - 1) / work.piece, run_piece, &work);
}

static OrtStatus *prepare_and_run(const struct kernel *kernel, OrtKernelContext *context,
                                  const struct qg_tensor *accumulator, struct parameters *parameters) {
    struct prepared prepared = {0};
    for (size_t k = BIAS; k < INPUTS; k++)
        QG_TRY(qg_read_input(kernel->api, context, k, narrow_names[k], &parameters->tensors[k]));
    QG_TRY(prepare(kernel, parameters, &prepared));
    OrtStatus *status = run(kernel, context, accumulator, &prepared);
    discard(&prepared);
    return status;
}

static OrtStatus *QG_ORT_CALL compute(void *data, OrtKernelContext *context) {
    const struct kernel *kernel = data;
    struct qg_tensor accumulator;
    QG_TRY(qg_read_input(kernel->api, context, ACCUMULATOR, narrow_names[ACCUMULATOR], &accumulator));
    if (accumulator.type != QG_ORT_INT32 || accumulator.rank == 0) {
        struct qg_problem problem;
        qg_complain(&problem, "input 'accumulator' is %s of rank %zu: give int32 of rank 1 or more",
                    qg_type_name(accumulator.type), accumulator.rank);
        return qg_status(kernel->api, &problem);
    }
    if (kernel->prepared.narrow != NULL || kernel->prepared.wide != NULL)
        return run(kernel, context, &accumulator, &kernel->prepared);
    struct parameters *parameters = calloc(1, sizeof *parameters);
    if (parameters == NULL) return qg_out_of_memory(kernel->api);
    OrtStatus *status = prepare_and_run(kernel, context, &accumulator, parameters);
    free(parameters);
    return status;
}

static const char *QG_ORT_CALL name(const OrtCustomOp *op) {
    (void)op;
    return "RequantizeGelu";
}

static size_t QG_ORT_CALL inputs(const OrtCustomOp *op) {
    (void)op;
    return INPUTS;
}

void qg_describe_requantize_ops(struct qg_op ops[QG_REQUANTIZE_OPS], const OrtApi *api) {
    /* The narrow arithmetic gives 8 bits only. */
    static const int offsets[QG_REQUANTIZE_OPS] = {QG_ORT_INT32, QG_ORT_INT32, QG_ORT_INT64,
                                                   QG_ORT_INT64, QG_ORT_INT64, QG_ORT_INT64};
    static const int outputs[QG_REQUANTIZE_OPS] = {QG_ORT_UINT8, QG_ORT_INT8,   QG_ORT_UINT8,
                                                   QG_ORT_INT8,  QG_ORT_UINT16, QG_ORT_INT16};
    for (size_t k = 0; k < QG_REQUANTIZE_OPS; k++) {
        struct qg_op *op = &ops[k];
        qg_describe(op, api);
        op->first = op->others = QG_ORT_INT32;
        op->odd_input = BODY;
        op->odd = offsets[k];
        op->output = outputs[k];
        op->base.GetName = name;
        op->base.GetInputTypeCount = inputs;
        op->base.CreateKernelV2 = create;
        op->base.KernelComputeV2 = compute;
        op->base.KernelDestroy = destroy;
    }
}
