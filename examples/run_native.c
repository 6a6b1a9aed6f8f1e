/* Runs a quantized model on the native kernels from C, without a header of ONNX Runtime's:

       cc -std=c11 run_native.c -ldl -o run_native
       ./run_native libonnxruntime.so libqgelu_ort.so model.onnx codes output 2 3072 < codes.bin > output.bin

   The arguments after the model are its input's name, its output's, and the input's shape; the input is int32, the output
   uint8 of the same shape. With "-" for the second library, the functions inside the model run instead.

   The table below has the entries of OrtApi that are used, by number: numbers never change. With onnxruntime_c_api.h at
   hand, it is not needed. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtSession OrtSession;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtValue OrtValue;
typedef void (*unused)(void);

typedef struct {
    unused unused_0[2];
    const char *(*GetErrorMessage)(const OrtStatus *status);
    OrtStatus *(*CreateEnv)(int logging, const char *name, OrtEnv **out);
    unused unused_4[3];
    OrtStatus *(*CreateSession)(const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtSession **out);
    unused unused_8[1];
    OrtStatus *(*Run)(OrtSession *session, const void *options, const char *const *input_names,
                      const OrtValue *const *inputs, size_t input_count, const char *const *output_names,
                      size_t output_count, OrtValue **outputs);
    OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **out);
    unused unused_11[38];
    OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *memory, void *data, size_t bytes,
                                                 const int64_t *shape, size_t rank, int type, OrtValue **out);
    unused unused_50[1];
    OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **out);
    unused unused_52[17];
    OrtStatus *(*CreateCpuMemoryInfo)(int allocator, int memory, OrtMemoryInfo **out);
    unused unused_70[22];
    void (*ReleaseEnv)(OrtEnv *env);
    void (*ReleaseStatus)(OrtStatus *status);
    void (*ReleaseMemoryInfo)(OrtMemoryInfo *memory);
    void (*ReleaseSession)(OrtSession *session);
    void (*ReleaseValue)(OrtValue *value);
    unused unused_97[3];
    void (*ReleaseSessionOptions)(OrtSessionOptions *options);
    unused unused_101[127];
    OrtStatus *(*RegisterCustomOpsLibrary_V2)(OrtSessionOptions *options, const char *path);
} OrtApi;
_Static_assert(offsetof(OrtApi, RegisterCustomOpsLibrary_V2) == 228 * sizeof(unused), "entry 228");

typedef struct {
    const OrtApi *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

enum { API_VERSION = 19, WARNINGS = 2, ARENA_ALLOCATOR = 1, DEFAULT_MEMORY = 0, INT32 = 6, LARGEST_RANK = 8 };

static const OrtApi *api;

static void stop(const char *reason) {
    fprintf(stderr, "error: %s\n", reason);
    exit(2);
}

static void check(OrtStatus *status) {
    if (status != NULL) stop(api->GetErrorMessage(status));
}

static const OrtApi *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) stop(dlerror());
    const OrtApiBase *(*get_base)(void);
    *(void **)&get_base = dlsym(library, "OrtGetApiBase");
    if (get_base == NULL) stop("no OrtGetApiBase: give the library libonnxruntime");
    const OrtApi *found = get_base()->GetApi(API_VERSION);
    if (found == NULL) stop("ONNX Runtime is older than 1.19");
    return found;
}

int main(int count, char **arguments) {
    if (count < 7 || count > 6 + LARGEST_RANK)
        stop("usage: run_native LIBONNXRUNTIME LIBQGELU|- MODEL INPUT OUTPUT SIZE...");
    api = load(arguments[1]);
    int64_t shape[LARGEST_RANK];
    size_t rank = (size_t)count - 6, elements = 1;
    for (size_t axis = 0; axis < rank; axis++) {
        shape[axis] = strtoll(arguments[6 + axis], NULL, 10);
        elements *= (size_t)shape[axis];
    }
    int32_t *codes = malloc(elements * sizeof *codes + 1);
    if (codes == NULL || fread(codes, sizeof *codes, elements, stdin) != elements) stop("the input ends early");

    OrtEnv *env = NULL;
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    OrtMemoryInfo *memory = NULL;
    OrtValue *input = NULL, *output = NULL;
    void *found = NULL;
    check(api->CreateEnv(WARNINGS, "run_native", &env));
    check(api->CreateSessionOptions(&options));
    if (arguments[2][0] != '-') check(api->RegisterCustomOpsLibrary_V2(options, arguments[2])); /* that is all */
    check(api->CreateSession(env, arguments[3], options, &session));
    check(api->CreateCpuMemoryInfo(ARENA_ALLOCATOR, DEFAULT_MEMORY, &memory));
    check(api->CreateTensorWithDataAsOrtValue(memory, codes, elements * sizeof *codes, shape, rank, INT32, &input));
    const char *input_name = arguments[4], *output_name = arguments[5];
    const OrtValue *inputs = input;
    check(api->Run(session, NULL, &input_name, &inputs, 1, &output_name, 1, &output));
    check(api->GetTensorMutableData(output, &found));
    fwrite(found, 1, elements, stdout);

    api->ReleaseValue(output);
    api->ReleaseValue(input);
    api->ReleaseMemoryInfo(memory);
    api->ReleaseSession(session);
    api->ReleaseSessionOptions(options);
    api->ReleaseEnv(env);
    free(codes);
    return 0;
}
