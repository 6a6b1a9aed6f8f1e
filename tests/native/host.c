/* A stand-in for ONNX Runtime that runs the native ops on what it reads: for sanitizers, fuzzing and other CPUs.

   Requests on stdin, answers on stdout, in the machine's byte order, until stdin ends:
     request: op name length, name, has_to, to, type that the graph gives the output, inputs; per input: kind (0 left
              out, 1 given at run time, 2 constant), type, rank, dimensions, bytes, data
     answer:  1, bytes, data; or 0, bytes, message
   All numbers are int64. Buffers are exactly as large as their data, so that a sanitizer sees every step outside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ort_abi.h"

struct OrtStatus {
    char message[512];
};
struct OrtTensorTypeAndShapeInfo {
    int type;
    size_t rank;
    int64_t *dimensions;
};
struct OrtValue {
    int64_t kind;
    struct OrtTensorTypeAndShapeInfo shape;
    void *data;
    size_t bytes;
};
enum { LARGEST = 16, OPS = 32 };
struct OrtKernelContext {
    struct OrtValue inputs[LARGEST], output;
    int64_t count, to, has_to, output_type;
};
struct OrtCustomOpDomain {
    const OrtCustomOp *ops[OPS];
    size_t count;
};

OrtStatus *QG_ORT_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);

static struct OrtCustomOpDomain domain;
static long statuses, shapes;

static void stop(const char *reason) {
    fprintf(stderr, "host: %s\n", reason);
    exit(3);
}

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) stop("out of memory");
    return memory;
}

static OrtStatus *create_status(int code, const char *message) {
    (void)code;
    OrtStatus *status = allocated(sizeof *status);
    snprintf(status->message, sizeof status->message, "%s", message);
    statuses++;
    return status;
}
static void release_status(OrtStatus *status) {
    statuses--;
    free(status);
}
static OrtStatus *create_domain(const char *name, OrtCustomOpDomain **out) {
    if (strcmp(name, "qgelu") != 0) stop("another domain");
    *out = &domain;
    return NULL;
}
static OrtStatus *add_op(OrtCustomOpDomain *to, const OrtCustomOp *op) {
    if (to->count == OPS) stop("too many ops");
    to->ops[to->count++] = op;
    return NULL;
}
static OrtStatus *add_domain(OrtSessionOptions *options, OrtCustomOpDomain *added) {
    (void)options, (void)added;
    return NULL;
}
static void release_domain(OrtCustomOpDomain *released) {
    (void)released;
}
static OrtStatus *get_data(OrtValue *value, void **out) {
    *out = value->data;
    return NULL;
}
static OrtStatus *set_type(OrtTensorTypeAndShapeInfo *info, int type) {
    info->type = type;
    return NULL;
}
static OrtStatus *get_type(const OrtTensorTypeAndShapeInfo *info, int *out) {
    *out = info->type;
    return NULL;
}
static OrtStatus *get_rank(const OrtTensorTypeAndShapeInfo *info, size_t *out) {
    *out = info->rank;
    return NULL;
}
static OrtStatus *get_dimensions(const OrtTensorTypeAndShapeInfo *info, int64_t *dimensions, size_t count) {
    memcpy(dimensions, info->dimensions, count * sizeof *dimensions);
    return NULL;
}
static OrtStatus *get_shape(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    *out = allocated(sizeof **out);
    **out = value->shape;
    shapes++;
    return NULL;
}
static void release_shape(OrtTensorTypeAndShapeInfo *info) {
    shapes--;
    free(info);
}
static OrtStatus *get_attribute(const OrtKernelInfo *info, const char *name, int64_t *out) {
    const struct OrtKernelContext *context = (const void *)info;
    if (!context->has_to || strcmp(name, "to") != 0) return create_status(QG_ORT_FAIL, "no such attribute");
    *out = context->to;
    return NULL;
}
static OrtStatus *get_input(const OrtKernelContext *context, size_t index, const OrtValue **out) {
    if ((int64_t)index >= context->count) return create_status(QG_ORT_FAIL, "no such input");
    *out = context->inputs[index].kind == 0 ? NULL : &context->inputs[index];
    return NULL;
}
static OrtStatus *get_constant(const OrtKernelInfo *info, size_t index, int *is_constant, const OrtValue **out) {
    const struct OrtKernelContext *context = (const void *)info;
    *is_constant = (int64_t)index < context->count && context->inputs[index].kind == 2;
    *out = *is_constant ? &context->inputs[index] : NULL;
    return NULL;
}
static size_t bytes_of(int type) {
    switch (type) {
    case QG_ORT_UINT8:
    case QG_ORT_INT8:
        return 1;
    case QG_ORT_UINT16:
    case QG_ORT_INT16:
        return 2;
    case QG_ORT_INT64:
        return 8;
    default:
        return 4;
    }
}
static OrtStatus *get_output(OrtKernelContext *context, size_t index, const int64_t *dimensions, size_t count,
                             OrtValue **out) {
    if (index != 0 || context->output.data != NULL) stop("another output");
    struct OrtValue *output = &context->output;
    output->shape = (struct OrtTensorTypeAndShapeInfo){(int)context->output_type, count, allocated(8 * count)};
    if (count > 0) memcpy(output->shape.dimensions, dimensions, 8 * count);
    output->bytes = bytes_of((int)context->output_type);
    for (size_t axis = 0; axis < count; axis++) output->bytes *= (size_t)dimensions[axis];
    output->data = allocated(output->bytes);
    *out = output;
    return NULL;
}
/* From last to first: no piece may rely on another. */
static OrtStatus *parallel_for(const OrtKernelContext *context, void (*function)(void *, size_t), size_t total,
                               size_t batches, void *data) {
    (void)context, (void)batches;
    while (total > 0) function(data, --total);
    return NULL;
}

static OrtApi api;
static const OrtApi *get_api(uint32_t version) {
    return version <= QG_ORT_API_VERSION ? &api : NULL;
}
static const char *get_version(void) {
    return "stand-in";
}

static void fill_api(void) {
    api.CreateStatus = create_status;
    api.ReleaseStatus = release_status;
    api.CreateCustomOpDomain = create_domain;
    api.CustomOpDomain_Add = add_op;
    api.AddCustomOpDomain = add_domain;
    api.ReleaseCustomOpDomain = release_domain;
    api.GetTensorMutableData = get_data;
    api.SetTensorElementType = set_type;
    api.GetTensorElementType = get_type;
    api.GetDimensionsCount = get_rank;
    api.GetDimensions = get_dimensions;
    api.GetTensorTypeAndShape = get_shape;
    api.ReleaseTensorTypeAndShapeInfo = release_shape;
    api.KernelInfoGetAttribute_int64 = get_attribute;
    api.KernelContext_GetInput = get_input;
    api.KernelContext_GetOutput = get_output;
    api.KernelInfoGetConstantInput_tensor = get_constant;
    api.KernelContext_ParallelFor = parallel_for;
}

static int64_t number(void) {
    int64_t value;
    if (fread(&value, sizeof value, 1, stdin) != 1) stop("request ends early");
    return value;
}

static void read_input(struct OrtValue *value) {
    value->kind = number();
    if (value->kind == 0) return;
    value->shape.type = (int)number();
    value->shape.rank = (size_t)number();
    value->shape.dimensions = allocated(8 * value->shape.rank);
    for (size_t axis = 0; axis < value->shape.rank; axis++) value->shape.dimensions[axis] = number();
    value->bytes = (size_t)number();
    value->data = allocated(value->bytes);
    if (value->bytes > 0 && fread(value->data, 1, value->bytes, stdin) != value->bytes) stop("data ends early");
}

/* The variant for these types, as ONNX Runtime would choose it; else the first of that name, to see it refuse. */
static const OrtCustomOp *find_op(const char *name, const struct OrtKernelContext *context) {
    const OrtCustomOp *found = NULL;
    for (size_t k = domain.count; k-- > 0;) {
        const OrtCustomOp *op = domain.ops[k];
        if (strcmp(op->GetName(op), name) != 0) continue;
        int fits = op->GetOutputType(op, 0) == context->output_type;
        for (size_t i = 0; i < op->GetInputTypeCount(op) && (int64_t)i < context->count; i++)
            fits = fits && op->GetInputType(op, i) == context->inputs[i].shape.type;
        if (fits) return op;
        found = op;
    }
    if (found == NULL) stop("no such op");
    return found;
}

static OrtStatus *run(const OrtCustomOp *op, struct OrtKernelContext *context, int times) {
    void *kernel = NULL;
    OrtStatus *status = op->CreateKernelV2(op, &api, (const OrtKernelInfo *)(const void *)context, &kernel);
    for (int k = 0; k < times && status == NULL; k++) {
        free(context->output.data);
        free(context->output.shape.dimensions);
        context->output = (struct OrtValue){0};
        status = op->KernelComputeV2(kernel, context);
    }
    if (kernel != NULL) op->KernelDestroy(kernel);
    return status;
}

static void answer(int64_t good, const void *data, size_t bytes) {
    int64_t head[2] = {good, (int64_t)bytes};
    fwrite(head, sizeof head, 1, stdout);
    if (bytes > 0) fwrite(data, 1, bytes, stdout);
    fflush(stdout);
}

static void serve(int64_t length) {
    char name[64] = {0};
    if (length < 0 || length >= (int64_t)sizeof name || fread(name, 1, (size_t)length, stdin) != (size_t)length)
        stop("no name");
    struct OrtKernelContext context = {0};
    context.has_to = number();
    context.to = number();
    context.output_type = number();
    context.count = number();
    if (context.count < 0 || context.count > LARGEST) stop("too many inputs");
    for (int64_t k = 0; k < context.count; k++) read_input(&context.inputs[k]);
    OrtStatus *status = run(find_op(name, &context), &context, 2);
    if (status == NULL)
        answer(1, context.output.data, context.output.bytes);
    else
        answer(0, status->message, strlen(status->message));
    if (status != NULL) release_status(status);
    for (int64_t k = 0; k < context.count; k++) {
        free(context.inputs[k].data);
        free(context.inputs[k].shape.dimensions);
    }
    free(context.output.data);
    free(context.output.shape.dimensions);
    if (statuses != 0 || shapes != 0) stop("a status or a shape was not released");
}

int main(void) {
    static const OrtApiBase base = {get_api, get_version};
    fill_api();
    OrtStatus *status = RegisterCustomOps(NULL, &base);
    if (status != NULL) stop(status->message);
    int64_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) serve(length);
    return 0;
}
