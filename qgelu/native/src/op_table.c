/* QGelu: codes of 8 or 16 bits through a table. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "op.h"
#include "table.h"

enum { CODES, TABLE, FIRST_CODE, INPUTS };
static const char *const names[INPUTS] = {"codes", "table", "first_code"};

/* Bytes of output worth a thread's start. */
enum { PIECE = 1 << 17 };

struct kernel {
    const OrtApi *api;
    struct qg_cpu cpu;
    int to;
    int code_type;     /* of the prepared table, or undefined if table or first_code is no constant */
    int code_minimum;  /* first_code, where prepared */
    void *by_pattern;  /* prepared: by the code's bit pattern */
    size_t table_size; /* entries, where prepared */
};

static OrtStatus *check_table(const struct kernel *kernel, const struct qg_tensor *table,
                              const struct qg_tensor *first_code) {
    struct qg_problem problem;
    if (table->type != kernel->to)
        qg_complain(&problem, "input 'table' is %s, but attribute 'to' says %s: make them the same",
                    qg_type_name(table->type), qg_type_name(kernel->to));
    else if (table->rank != 1 || (table->count != 256 && table->count != 65536))
        qg_complain(&problem,
                    "input 'table' has rank %zu and %zu entries: give 256 for 8-bit codes, 65536 for 16-bit ones",
                    table->rank, table->count);
    else if (first_code->type != QG_ORT_INT64 || first_code->count != 1)
        qg_complain(&problem, "input 'first_code' is %s with %zu elements: give one int64",
                    qg_type_name(first_code->type), first_code->count);
    else
        return NULL;
    return qg_status(kernel->api, &problem);
}

/* Whether table and first_code serve codes of a type. */
static OrtStatus *check_codes(const struct kernel *kernel, int code_type, size_t entries, int64_t first) {
    struct qg_problem problem;
    size_t bytes = qg_code_bytes(code_type);
    if (bytes == 0)
        qg_complain(&problem, "input 'codes' is %s: give int8, uint8, int16 or uint16", qg_type_name(code_type));
    else if (entries != (size_t)1 << (8 * bytes))
        qg_complain(&problem, "input 'table' has %zu entries, but 'codes' is %s: give %zu", entries,
                    qg_type_name(code_type), (size_t)1 << (8 * bytes));
    else if (first != qg_code_minimum(code_type))
        qg_complain(&problem, "input 'first_code' is %" PRId64 ", but 'codes' is %s: give %" PRId32, first,
                    qg_type_name(code_type), qg_code_minimum(code_type));
    else
        return NULL;
    return qg_status(kernel->api, &problem);
}

/* A copy of the table by bit pattern: the patterns of negative codes come last. NULL without memory. */
static void *ordered(const struct qg_tensor *table, int64_t first) {
    size_t bytes = table->count * qg_code_bytes(table->type);
    size_t skipped = first == 0 ? 0 : bytes / 2;
    unsigned char *copy = malloc(bytes);
    if (copy == NULL) return NULL;
    memcpy(copy, (const unsigned char *)table->data + skipped, bytes - skipped);
    memcpy(copy + bytes - skipped, table->data, skipped);
    return copy;
}

static OrtStatus *prepare(struct kernel *kernel, const struct qg_tensor *table, const struct qg_tensor *first_code) {
    QG_TRY(check_table(kernel, table, first_code));
    int64_t first = 0;
    memcpy(&first, first_code->data, sizeof first);
    /* Which type the codes have is not known yet: one of two, by the table's size; first_code tells which. */
    bool wide = table->count == 65536, is_signed = first != 0;
    int type = wide ? (is_signed ? QG_ORT_INT16 : QG_ORT_UINT16) : (is_signed ? QG_ORT_INT8 : QG_ORT_UINT8);
    QG_TRY(check_codes(kernel, type, table->count, first));
    kernel->by_pattern = ordered(table, first);
    if (kernel->by_pattern == NULL) return qg_out_of_memory(kernel->api);
    kernel->code_type = type;
    kernel->code_minimum = (int)first;
    kernel->table_size = table->count;
    return NULL;
}

static void QG_ORT_CALL destroy(void *data) {
    struct kernel *kernel = data;
    if (kernel != NULL) free(kernel->by_pattern);
    free(kernel);
}

static OrtStatus *fill(struct kernel *kernel, const OrtKernelInfo *info) {
    struct qg_problem problem;
    const char *wrong = qg_find_cpu(&kernel->cpu);
    if (wrong != NULL) {
        qg_complain(&problem, "%s", wrong);
        return qg_status(kernel->api, &problem);
    }
    QG_TRY(qg_read_to(kernel->api, info, &kernel->to));
    struct qg_tensor table, first_code;
    QG_TRY(qg_read_constant(kernel->api, info, TABLE, names[TABLE], &table));
    QG_TRY(qg_read_constant(kernel->api, info, FIRST_CODE, names[FIRST_CODE], &first_code));
    return table.data != NULL && first_code.data != NULL ? prepare(kernel, &table, &first_code) : NULL;
}

static OrtStatus *QG_ORT_CALL create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **out) {
    (void)op;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL) return qg_out_of_memory(api);
    kernel->api = api;
    OrtStatus *status = fill(kernel, info);
    if (status != NULL) {
        destroy(kernel);
        kernel = NULL;
    }
    *out = kernel;
    return status;
}

struct work {
    qg_lookup lookup;
    const void *table;
    const unsigned char *codes;
    unsigned char *out;
    size_t count, code_bytes, entry_bytes;
};

static void look_piece_up(void *data, size_t k) {
    const struct work *work = data;
    size_t first = k * PIECE;
    size_t count = work->count - first < PIECE ? work->count - first : PIECE;
    work->lookup(work->table, work->codes + first * work->code_bytes, work->out + first * work->entry_bytes, count);
}

static OrtStatus *run(const struct kernel *kernel, OrtKernelContext *context, const struct qg_tensor *codes,
                      const void *by_pattern) {
    void *out = NULL;
    QG_TRY(qg_make_output(kernel->api, context, codes, kernel->to, &out));
    struct work work = {.table = by_pattern, .codes = codes->data, .out = out, .count = codes->count};
    work.code_bytes = qg_code_bytes(codes->type);
    work.entry_bytes = qg_code_bytes(kernel->to);
    work.lookup = qg_choose_lookup(&kernel->cpu, work.code_bytes, work.entry_bytes);
    return qg_run_pieces(kernel->api, context, (work.count + PIECE - 1) / PIECE, look_piece_up, &work);
}

static OrtStatus *QG_ORT_CALL compute(void *data, OrtKernelContext *context) {
    const struct kernel *kernel = data;
    const OrtApi *api = kernel->api;
    struct qg_tensor codes;
    QG_TRY(qg_read_input(api, context, CODES, names[CODES], &codes));
    if (kernel->by_pattern != NULL) {
        QG_TRY(check_codes(kernel, codes.type, kernel->table_size, kernel->code_minimum));
        return run(kernel, context, &codes, kernel->by_pattern);
    }
    struct kernel prepared = *kernel;
    struct qg_tensor table, first_code;
    QG_TRY(qg_read_input(api, context, TABLE, names[TABLE], &table));
    QG_TRY(qg_read_input(api, context, FIRST_CODE, names[FIRST_CODE], &first_code));
    QG_TRY(prepare(&prepared, &table, &first_code));
    OrtStatus *status = check_codes(kernel, codes.type, prepared.table_size, prepared.code_minimum);
    if (status == NULL) status = run(kernel, context, &codes, prepared.by_pattern);
    free(prepared.by_pattern);
    return status;
}

static const char *QG_ORT_CALL name(const OrtCustomOp *op) {
    (void)op;
    return "QGelu";
}

static size_t QG_ORT_CALL inputs(const OrtCustomOp *op) {
    (void)op;
    return INPUTS;
}

void qg_describe_table_ops(struct qg_op ops[QG_TABLE_OPS], const OrtApi *api) {
    static const int types[4] = {QG_ORT_UINT8, QG_ORT_INT8, QG_ORT_UINT16, QG_ORT_INT16};
    for (size_t k = 0; k < QG_TABLE_OPS; k++) {
        struct qg_op *op = &ops[k];
        qg_describe(op, api);
        op->first = types[k / 4];
        op->odd_input = TABLE;
        op->odd = op->output = types[k % 4];
        op->others = QG_ORT_INT64; /* first_code */
        op->base.GetName = name;
        op->base.GetInputTypeCount = inputs;
        op->base.CreateKernelV2 = create;
        op->base.KernelComputeV2 = compute;
        op->base.KernelDestroy = destroy;
    }
}
