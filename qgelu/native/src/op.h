/* What both ops share: tensors, statuses, attributes, threads. */
#ifndef QGELU_OP_H
#define QGELU_OP_H

#include "ort_abi.h"
#include "problem.h"

enum { QG_LARGEST_RANK = 64 };

struct qg_tensor {
    const char *name; /* the input's, for messages */
    const void *data;
    int type;
    size_t rank, count; /* axes, elements */
    int64_t dimensions[QG_LARGEST_RANK];
};

/* Hands a failure of ONNX Runtime's on. */
#define QG_TRY(call)                             \
    do {                                         \
        OrtStatus *failed_call = (call);         \
        if (failed_call != NULL) return failed_call; \
    } while (0)

/* A status with the problem's message. */
OrtStatus *qg_status(const OrtApi *api, const struct qg_problem *problem);
OrtStatus *qg_out_of_memory(const OrtApi *api);

OrtStatus *qg_read_tensor(const OrtApi *api, const OrtValue *value, const char *name, struct qg_tensor *tensor);
OrtStatus *qg_read_input(const OrtApi *api, const OrtKernelContext *context, size_t index, const char *name,
                         struct qg_tensor *tensor);
/* As qg_read_input, where the input is a constant; else the data is NULL. */
OrtStatus *qg_read_constant(const OrtApi *api, const OrtKernelInfo *info, size_t index, const char *name,
                            struct qg_tensor *tensor);

/* The output's elements, in the input's shape. Fails if the graph has given the output another type than `type`. */
OrtStatus *qg_make_output(const OrtApi *api, OrtKernelContext *context, const struct qg_tensor *input, int type,
                          void **data);

/* The attribute `to`: int8, uint8, int16 or uint16. */
OrtStatus *qg_read_to(const OrtApi *api, const OrtKernelInfo *info, int *to);

/* The bytes of a code, the smallest and the largest code of these four types; 0 bytes for other types. */
size_t qg_code_bytes(int type);
int32_t qg_code_minimum(int type);
int32_t qg_code_maximum(int type);
const char *qg_type_name(int type);

/* Calls work(data, k) for k < pieces, on ONNX Runtime's threads where there is more than one piece. */
OrtStatus *qg_run_pieces(const OrtApi *api, const OrtKernelContext *context, size_t pieces,
                         void (*work)(void *data, size_t k), void *data);

/* A variant of an op: ONNX Runtime picks the one whose types are a node's. Version 1.19 allows no op that leaves the
   types of several inputs open. */
struct qg_op {
    OrtCustomOp base; /* first: ONNX Runtime hands a pointer to it back */
    const OrtApi *api; /* for callbacks that are not given one */
    int first, odd, output; /* types: of input 0, of input number odd_input, of the output */
    size_t odd_input;
    int others; /* of all other inputs */
};

static inline const struct qg_op *qg_op_of(const OrtCustomOp *op) {
    return (const struct qg_op *)(const void *)op;
}

enum { QG_TABLE_OPS = 16, QG_REQUANTIZE_OPS = 6 };

/* Fill in all variants of an op. */
void qg_describe_table_ops(struct qg_op ops[QG_TABLE_OPS], const OrtApi *api);
void qg_describe_requantize_ops(struct qg_op ops[QG_REQUANTIZE_OPS], const OrtApi *api);

/* Fills in what both ops answer alike. */
void qg_describe(struct qg_op *op, const OrtApi *api);

#endif
