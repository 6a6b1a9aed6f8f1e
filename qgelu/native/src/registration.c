/* The library's one exported function, which ONNX Runtime's RegisterCustomOpsLibrary calls. */
#include <stdatomic.h>
#include <stdlib.h>

#include "cpu.h"
#include "op.h"

#if defined(_WIN32)
#define QG_EXPORT __declspec(dllexport)
#else
#define QG_EXPORT __attribute__((visibility("default")))
#endif

/* Ops must outlive the sessions that use them: one registration for each ONNX Runtime in the process, kept for good. */
struct registration {
    const OrtApi *api;
    OrtCustomOpDomain *domain;
    struct qg_op ops[QG_TABLE_OPS + QG_REQUANTIZE_OPS];
    struct registration *next;
};

static struct registration *registrations = NULL;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static OrtStatus *fill(struct registration *registration) {
    const OrtApi *api = registration->api;
    qg_describe_table_ops(registration->ops, api);
    qg_describe_requantize_ops(registration->ops + QG_TABLE_OPS, api);
    QG_TRY(api->CreateCustomOpDomain("qgelu", &registration->domain));
    for (size_t k = 0; k < QG_TABLE_OPS + QG_REQUANTIZE_OPS; k++)
        QG_TRY(api->CustomOpDomain_Add(registration->domain, &registration->ops[k].base));
    return NULL;
}

static OrtStatus *find_or_make(const OrtApi *api, struct registration **found) {
    for (*found = registrations; *found != NULL; *found = (*found)->next)
        if ((*found)->api == api) return NULL;
    struct registration *made = calloc(1, sizeof *made);
    if (made == NULL) return qg_out_of_memory(api);
    made->api = api;
    OrtStatus *status = fill(made);
    if (status != NULL) {
        if (made->domain != NULL) api->ReleaseCustomOpDomain(made->domain);
        free(made);
        return status;
    }
    made->next = registrations;
    *found = registrations = made;
    return NULL;
}

QG_EXPORT OrtStatus *QG_ORT_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);

OrtStatus *QG_ORT_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    const OrtApi *api = base->GetApi(QG_ORT_API_VERSION);
    if (api == NULL) /* the first entry is in every version */
        return base->GetApi(1)->CreateStatus(QG_ORT_NOT_IMPLEMENTED,
                                             "qgelu's native kernels need ONNX Runtime 1.19 or newer: update it");
    struct qg_cpu cpu;
    const char *wrong = qg_find_cpu(&cpu);
    if (wrong != NULL) return api->CreateStatus(QG_ORT_INVALID_ARGUMENT, wrong);
    struct registration *registration = NULL;
    while (atomic_flag_test_and_set(&busy)) continue;
    OrtStatus *status = find_or_make(api, &registration);
    atomic_flag_clear(&busy);
    return status != NULL ? status : api->AddCustomOpDomain(options, registration->domain);
}
