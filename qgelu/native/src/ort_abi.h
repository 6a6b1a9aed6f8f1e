/* The part of ONNX Runtime's C ABI that these ops use, declared here so that no header is needed to build them.

   ONNX Runtime hands out a table of function pointers, OrtApi. Entries are only ever added at its end, so that a number
   stands for the same function in every version. Comments give the entry's number and the API version that added it.
   Functions that return OrtStatus * return NULL on success; a status is to be released. */
#ifndef QGELU_ORT_ABI_H
#define QGELU_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define QG_ORT_CALL __stdcall
#else
#define QG_ORT_CALL
#endif

/* ONNX Runtime 1.19 is the oldest that serves: shape inference, and threads for custom ops, came with 1.17, but not until
   1.19 does a custom op's shape inference set the output's type as well. */
#define QG_ORT_API_VERSION 19
/* Layout of OrtCustomOp below. */
#define QG_ORT_OP_VERSION 17

typedef struct OrtStatus OrtStatus;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtApi OrtApi;
typedef struct OrtCustomOp OrtCustomOp;

/* ONNXTensorElementDataType, which has ONNX's own numbers. */
enum {
    QG_ORT_UNDEFINED = 0,
    QG_ORT_UINT8 = 2,
    QG_ORT_INT8 = 3,
    QG_ORT_UINT16 = 4,
    QG_ORT_INT16 = 5,
    QG_ORT_INT32 = 6,
    QG_ORT_INT64 = 7
};

/* OrtErrorCode. */
enum { QG_ORT_FAIL = 1, QG_ORT_INVALID_ARGUMENT = 2, QG_ORT_NOT_IMPLEMENTED = 9 };

/* OrtOpAttrType. */
enum { QG_ORT_ATTRIBUTE_INT = 1 };

/* OrtCustomOpInputOutputCharacteristic. */
enum { QG_ORT_REQUIRED = 0 };

/* OrtMemType. */
enum { QG_ORT_MEMORY_DEFAULT = 0 };

typedef void (*qg_unused)(void);

struct OrtApi {
    /* 0, API 1: a new status with a copy of the message. */
    OrtStatus *(QG_ORT_CALL *CreateStatus)(int code, const char *message);
    qg_unused unused_1[25];
    /* 26, API 1: an empty domain. */
    OrtStatus *(QG_ORT_CALL *CreateCustomOpDomain)(const char *domain, OrtCustomOpDomain **out);
    /* 27, API 1: the op must outlive the domain. */
    OrtStatus *(QG_ORT_CALL *CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);
    /* 28, API 1: the domain must outlive the options and their sessions. */
    OrtStatus *(QG_ORT_CALL *AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);
    qg_unused unused_29[22];
    /* 51, API 1: a tensor's elements. */
    OrtStatus *(QG_ORT_CALL *GetTensorMutableData)(OrtValue *value, void **out);
    qg_unused unused_52[6];
    /* 58, API 1. */
    OrtStatus *(QG_ORT_CALL *SetTensorElementType)(OrtTensorTypeAndShapeInfo *info, int type);
    qg_unused unused_59[1];
    /* 60, API 1. */
    OrtStatus *(QG_ORT_CALL *GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info, int *out);
    /* 61, API 1: the rank. */
    OrtStatus *(QG_ORT_CALL *GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);
    /* 62, API 1. */
    OrtStatus *(QG_ORT_CALL *GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *dimensions, size_t count);
    /* 63, API 1: names of dynamic axes, empty for others; they belong to the description. */
    OrtStatus *(QG_ORT_CALL *GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *info, const char **names,
                                                    size_t count);
    qg_unused unused_64[1];
    /* 65, API 1: a new description of a tensor. */
    OrtStatus *(QG_ORT_CALL *GetTensorTypeAndShape)(const OrtValue *value, OrtTensorTypeAndShapeInfo **out);
    qg_unused unused_66[20];
    /* 86, API 1. */
    OrtStatus *(QG_ORT_CALL *KernelInfoGetAttribute_int64)(const OrtKernelInfo *info, const char *name, int64_t *out);
    qg_unused unused_87[3];
    /* 90, API 1: NULL for an input left out. */
    OrtStatus *(QG_ORT_CALL *KernelContext_GetInput)(const OrtKernelContext *context, size_t index,
                                                     const OrtValue **out);
    /* 91, API 1: allocates the output in this shape. */
    OrtStatus *(QG_ORT_CALL *KernelContext_GetOutput)(OrtKernelContext *context, size_t index,
                                                      const int64_t *dimensions, size_t count, OrtValue **out);
    qg_unused unused_92[1];
    /* 93, API 1. */
    void(QG_ORT_CALL *ReleaseStatus)(OrtStatus *status);
    qg_unused unused_94[5];
    /* 99, API 1. */
    void(QG_ORT_CALL *ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *info);
    qg_unused unused_100[1];
    /* 101, API 1. */
    void(QG_ORT_CALL *ReleaseCustomOpDomain)(OrtCustomOpDomain *domain);
    qg_unused unused_102[147];
    /* 249, API 15: an input that is a constant initializer; it belongs to ONNX Runtime. */
    OrtStatus *(QG_ORT_CALL *KernelInfoGetConstantInput_tensor)(const OrtKernelInfo *info, size_t index,
                                                                int *is_constant, const OrtValue **out);
    qg_unused unused_250[18];
    /* 268, API 17: type and shape of an input, which belong to the context. */
    OrtStatus *(QG_ORT_CALL *ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext *context, size_t index,
                                                                  OrtTensorTypeAndShapeInfo **out);
    /* 269, API 17. */
    OrtStatus *(QG_ORT_CALL *ShapeInferContext_GetAttribute)(const OrtShapeInferContext *context, const char *name,
                                                             const OrtOpAttr **out);
    /* 270, API 17. */
    OrtStatus *(QG_ORT_CALL *ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext *context, size_t index,
                                                                   const OrtTensorTypeAndShapeInfo *info);
    /* 271, API 17: copies the names. */
    OrtStatus *(QG_ORT_CALL *SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo *info, const char **names, size_t count);
    /* 272, API 17: copies an attribute of at most size bytes; out gets the bytes needed. */
    OrtStatus *(QG_ORT_CALL *ReadOpAttr)(const OrtOpAttr *attribute, int type, void *data, size_t size, size_t *out);
    qg_unused unused_273[1];
    /* 274, API 17: calls function(data, k) for k < total on the session's threads, in `batches` portions (0: as many
       as threads), and returns when all have returned. */
    OrtStatus *(QG_ORT_CALL *KernelContext_ParallelFor)(const OrtKernelContext *context,
                                                        void (*function)(void *data, size_t k), size_t total,
                                                        size_t batches, void *data);
};

typedef struct OrtApiBase {
    /* The table of an API version, or NULL where ONNX Runtime is older than that. */
    const OrtApi *(QG_ORT_CALL *GetApi)(uint32_t version);
    const char *(QG_ORT_CALL *GetVersionString)(void);
} OrtApiBase;

/* A custom op: callbacks, in API 17's layout. ONNX Runtime looks at `version` before it reads later entries. */
struct OrtCustomOp {
    uint32_t version;
    void *(QG_ORT_CALL *CreateKernel)(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info);
    const char *(QG_ORT_CALL *GetName)(const OrtCustomOp *op);
    /* NULL: the CPU. */
    const char *(QG_ORT_CALL *GetExecutionProviderType)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetInputType)(const OrtCustomOp *op, size_t index);
    size_t(QG_ORT_CALL *GetInputTypeCount)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetOutputType)(const OrtCustomOp *op, size_t index);
    size_t(QG_ORT_CALL *GetOutputTypeCount)(const OrtCustomOp *op);
    void(QG_ORT_CALL *KernelCompute)(void *kernel, OrtKernelContext *context);
    void(QG_ORT_CALL *KernelDestroy)(void *kernel);
    int(QG_ORT_CALL *GetInputCharacteristic)(const OrtCustomOp *op, size_t index);
    int(QG_ORT_CALL *GetOutputCharacteristic)(const OrtCustomOp *op, size_t index);
    int(QG_ORT_CALL *GetInputMemoryType)(const OrtCustomOp *op, size_t index);
    int(QG_ORT_CALL *GetVariadicInputMinArity)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetVariadicInputHomogeneity)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetVariadicOutputMinArity)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetVariadicOutputHomogeneity)(const OrtCustomOp *op);
    /* Used instead of CreateKernel and KernelCompute where they are not NULL; API 16. */
    OrtStatus *(QG_ORT_CALL *CreateKernelV2)(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                                             void **kernel);
    OrtStatus *(QG_ORT_CALL *KernelComputeV2)(void *kernel, OrtKernelContext *context);
    /* API 17. */
    OrtStatus *(QG_ORT_CALL *InferOutputShape)(const OrtCustomOp *op, OrtShapeInferContext *context);
    int(QG_ORT_CALL *GetStartVersion)(const OrtCustomOp *op);
    int(QG_ORT_CALL *GetEndVersion)(const OrtCustomOp *op);
};

#define QG_ORT_SLOT(name, number) \
    _Static_assert(offsetof(OrtApi, name) == (number) * sizeof(qg_unused), #name " is entry " #number)
QG_ORT_SLOT(CreateCustomOpDomain, 26);
QG_ORT_SLOT(GetTensorMutableData, 51);
QG_ORT_SLOT(SetTensorElementType, 58);
QG_ORT_SLOT(GetTensorElementType, 60);
QG_ORT_SLOT(GetTensorTypeAndShape, 65);
QG_ORT_SLOT(KernelInfoGetAttribute_int64, 86);
QG_ORT_SLOT(KernelContext_GetInput, 90);
QG_ORT_SLOT(ReleaseStatus, 93);
QG_ORT_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
QG_ORT_SLOT(ReleaseCustomOpDomain, 101);
QG_ORT_SLOT(KernelInfoGetConstantInput_tensor, 249);
QG_ORT_SLOT(ShapeInferContext_GetInputTypeShape, 268);
QG_ORT_SLOT(ReadOpAttr, 272);
QG_ORT_SLOT(KernelContext_ParallelFor, 274);
#undef QG_ORT_SLOT

#endif
