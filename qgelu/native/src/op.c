#include "op.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

OrtStatus *qg_status(const OrtApi *api, const struct qg_problem *problem) {
    return api->CreateStatus(QG_ORT_INVALID_ARGUMENT, problem->message);
}

OrtStatus *qg_out_of_memory(const OrtApi *api) {
    return api->CreateStatus(QG_ORT_FAIL, "qgelu: out of memory");
}

static OrtStatus *read_shape(const OrtApi *api, const OrtTensorTypeAndShapeInfo *info, struct qg_tensor *tensor) {
    QG_TRY(api->GetTensorElementType(info, &tensor->type));
    QG_TRY(api->GetDimensionsCount(info, &tensor->rank));
    if (tensor->rank > QG_LARGEST_RANK) {
        struct qg_problem problem;
        qg_complain(&problem, "input '%s' has rank %zu, beyond %d: reshape it", tensor->name, tensor->rank,
                    (int)QG_LARGEST_RANK);
        return qg_status(api, &problem);
    }
    QG_TRY(api->GetDimensions(info, tensor->dimensions, tensor->rank));
    tensor->count = 1;
    for (size_t axis = 0; axis < tensor->rank; axis++) tensor->count *= (size_t)tensor->dimensions[axis];
    return NULL;
}

OrtStatus *qg_read_tensor(const OrtApi *api, const OrtValue *value, const char *name, struct qg_tensor *tensor) {
    tensor->name = name;
    if (value == NULL) {
        struct qg_problem problem;
        qg_complain(&problem, "input '%s' is missing: give all inputs of the op", name);
        return qg_status(api, &problem);
    }
    OrtTensorTypeAndShapeInfo *info = NULL;
    QG_TRY(api->GetTensorTypeAndShape(value, &info));
    OrtStatus *status = read_shape(api, info, tensor);
    api->ReleaseTensorTypeAndShapeInfo(info);
    if (status != NULL) return status;
    void *data = NULL;
    QG_TRY(api->GetTensorMutableData((OrtValue *)(uintptr_t)value, &data));
    tensor->data = data;
    return NULL;
}

OrtStatus *qg_read_input(const OrtApi *api, const OrtKernelContext *context, size_t index, const char *name,
                         struct qg_tensor *tensor) {
    const OrtValue *value = NULL;
    QG_TRY(api->KernelContext_GetInput(context, index, &value));
    return qg_read_tensor(api, value, name, tensor);
}

OrtStatus *qg_read_constant(const OrtApi *api, const OrtKernelInfo *info, size_t index, const char *name,
                            struct qg_tensor *tensor) {
    const OrtValue *value = NULL;
    int is_constant = 0;
    tensor->data = NULL;
    QG_TRY(api->KernelInfoGetConstantInput_tensor(info, index, &is_constant, &value));
    return is_constant && value != NULL ? qg_read_tensor(api, value, name, tensor) : NULL;
}

OrtStatus *qg_make_output(const OrtApi *api, OrtKernelContext *context, const struct qg_tensor *input, int type,
                          void **data) {
    OrtValue *value = NULL;
    QG_TRY(api->KernelContext_GetOutput(context, 0, input->dimensions, input->rank, &value));
    struct qg_tensor output;
    QG_TRY(qg_read_tensor(api, value, "output", &output));
    if (output.type != type) {
        struct qg_problem problem;
        qg_complain(&problem, "the graph declares the output %s, but attribute 'to' says %s: make them the same",
                    qg_type_name(output.type), qg_type_name(type));
        return qg_status(api, &problem);
    }
    return api->GetTensorMutableData(value, data);
}

OrtStatus *qg_read_to(const OrtApi *api, const OrtKernelInfo *info, int *to) {
    int64_t value = QG_ORT_UNDEFINED;
    OrtStatus *status = api->KernelInfoGetAttribute_int64(info, "to", &value);
    if (status != NULL) {
        api->ReleaseStatus(status);
        return api->CreateStatus(QG_ORT_INVALID_ARGUMENT,
                                 "attribute 'to' is missing: give the output's type as in Cast");
    }
    if (value < 0 || value > QG_ORT_INT64 || qg_code_bytes((int)value) == 0) {
        struct qg_problem problem;
        qg_complain(&problem, "attribute 'to' is %" PRId64 ": use 2 (uint8), 3 (int8), 4 (uint16) or 5 (int16)", value);
        return qg_status(api, &problem);
    }
    *to = (int)value;
    return NULL;
}

size_t qg_code_bytes(int type) {
    switch (type) {
    case QG_ORT_UINT8:
    case QG_ORT_INT8:
        return 1;
    case QG_ORT_UINT16:
    case QG_ORT_INT16:
        return 2;
    default:
        return 0;
    }
}

int32_t qg_code_minimum(int type) {
    return type == QG_ORT_INT8 ? INT8_MIN : type == QG_ORT_INT16 ? INT16_MIN : 0;
}

int32_t qg_code_maximum(int type) {
    return qg_code_minimum(type) + (qg_code_bytes(type) == 1 ? UINT8_MAX : UINT16_MAX);
}

const char *qg_type_name(int type) {
    switch (type) {
    case QG_ORT_UINT8:
        return "uint8";
    case QG_ORT_INT8:
        return "int8";
    case QG_ORT_UINT16:
        return "uint16";
    case QG_ORT_INT16:
        return "int16";
    case QG_ORT_INT32:
        return "int32";
    case QG_ORT_INT64:
        return "int64";
    default:
        return "another type";
    }
}

OrtStatus *qg_run_pieces(const OrtApi *api, const OrtKernelContext *context, size_t pieces,
                         void (*work)(void *data, size_t k), void *data) {
    if (pieces > 1) return api->KernelContext_ParallelFor(context, work, pieces, 0, data);
    if (pieces == 1) work(data, 0);
    return NULL;
}

static int QG_ORT_CALL input_type(const OrtCustomOp *base, size_t index) {
    const struct qg_op *op = qg_op_of(base);
    return index == 0 ? op->first : index == op->odd_input ? op->odd : op->others;
}

static int QG_ORT_CALL output_type(const OrtCustomOp *op, size_t index) {
    (void)index;
    return qg_op_of(op)->output;
}

static size_t QG_ORT_CALL one_output(const OrtCustomOp *op) {
    (void)op;
    return 1;
}

static const char *QG_ORT_CALL on_the_cpu(const OrtCustomOp *op) {
    (void)op;
    return NULL;
}

static int QG_ORT_CALL required(const OrtCustomOp *op, size_t index) {
    (void)op, (void)index;
    return QG_ORT_REQUIRED;
}

static int QG_ORT_CALL default_memory(const OrtCustomOp *op, size_t index) {
    (void)op, (void)index;
    return QG_ORT_MEMORY_DEFAULT;
}

static int QG_ORT_CALL one(const OrtCustomOp *op) {
    (void)op;
    return 1;
}

static int QG_ORT_CALL latest(const OrtCustomOp *op) {
    (void)op;
    return INT32_MAX;
}

/* Names the axes of which nothing is known: ONNX Runtime would take their -1 for a size. */
static OrtStatus *name_unknown_axes(const OrtApi *api, OrtTensorTypeAndShapeInfo *info) {
    static atomic_uint last;
    int64_t dimensions[QG_LARGEST_RANK];
    const char *names[QG_LARGEST_RANK];
    size_t rank = 0, bytes = 0;
    QG_TRY(api->GetDimensionsCount(info, &rank));
    if (rank > QG_LARGEST_RANK) return api->CreateStatus(QG_ORT_FAIL, "too many axes");
    QG_TRY(api->GetDimensions(info, dimensions, rank));
    QG_TRY(api->GetSymbolicDimensions(info, names, rank));
    for (size_t axis = 0; axis < rank; axis++) bytes += strlen(names[axis]) + sizeof "qgelu_axis_4294967295";
    /* Copies, since the names so far belong to what is about to change. */
    char *made = malloc(bytes + 1), *end = made;
    if (made == NULL) return qg_out_of_memory(api);
    for (size_t axis = 0; axis < rank; axis++) {
        bool unknown = dimensions[axis] < 0 && *names[axis] == '\0';
        int length = unknown ? sprintf(end, "qgelu_axis_%u", atomic_fetch_add(&last, 1)) : sprintf(end, "%s", names[axis]);
        names[axis] = end;
        end += length + 1;
    }
    OrtStatus *status = api->SetSymbolicDimensions(info, names, rank);
    free(made);
    return status;
}

/* Gives the output the first input's shape and the type that attribute `to` says. What is not known is left open. */
static OrtStatus *infer(const OrtApi *api, OrtShapeInferContext *context) {
    OrtTensorTypeAndShapeInfo *info = NULL;
    const OrtOpAttr *attribute = NULL;
    int64_t to = QG_ORT_UNDEFINED;
    size_t size = 0;
    QG_TRY(api->ShapeInferContext_GetAttribute(context, "to", &attribute));
    QG_TRY(api->ReadOpAttr(attribute, QG_ORT_ATTRIBUTE_INT, &to, sizeof to, &size));
    QG_TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &info));
    if (info == NULL || to < 0 || to > QG_ORT_INT64 || qg_code_bytes((int)to) == 0) return NULL;
    QG_TRY(api->SetTensorElementType(info, (int)to));
    QG_TRY(name_unknown_axes(api, info));
    return api->ShapeInferContext_SetOutputTypeShape(context, 0, info);
}

static OrtStatus *QG_ORT_CALL infer_output(const OrtCustomOp *op, OrtShapeInferContext *context) {
    const OrtApi *api = qg_op_of(op)->api;
    OrtStatus *status = infer(api, context);
    if (status != NULL) api->ReleaseStatus(status);
    return NULL;
}

void qg_describe(struct qg_op *described, const OrtApi *api) {
    OrtCustomOp *op = &described->base;
    described->api = api;
    op->version = QG_ORT_OP_VERSION;
    op->GetExecutionProviderType = on_the_cpu;
    op->GetInputType = input_type;
    op->GetOutputType = output_type;
    op->GetOutputTypeCount = one_output;
    op->GetInputCharacteristic = required;
    op->GetOutputCharacteristic = required;
    op->GetInputMemoryType = default_memory;
    op->GetVariadicInputMinArity = one;
    op->GetVariadicInputHomogeneity = one;
    op->GetVariadicOutputMinArity = one;
    op->GetVariadicOutputHomogeneity = one;
    op->InferOutputShape = infer_output;
    op->GetStartVersion = one;
    op->GetEndVersion = latest;
}
