/* sparsetune.h: runs plans for the host CPU from their bundles (docs/bundle.md), without the service.
 *
 *     sparsetune_plan *plan;
 *     if (sparsetune_plan_open("plan.stplan", &plan) != SPARSETUNE_OK) {
 *         fprintf(stderr, "%s\n", sparsetune_error());
 *         return 1;
 *     }
 *     sparsetune_plan_run(plan, b, c, 1.0, 0.0);
 *     sparsetune_plan_close(plan);
 *
 * Link with -lsparsetune_c. Functions that can fail return a status, and leave a sentence for `sparsetune_error`. A plan may be
 * used by several threads at the same time; new values wait for its calls, and calls for new values. All plans share threads,
 * which are started with the first plan, so a process that was forked after that must open its plans itself.
 */
#ifndef SPARSETUNE_H
#define SPARSETUNE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented by every change that existing programs notice. */
#define SPARSETUNE_ABI 1

/* Statuses. */
#define SPARSETUNE_OK 0
/* A null pointer, a number that does not suit the plan, or operands that overlap. */
#define SPARSETUNE_BAD_ARGUMENT 1
/* The file cannot be read, is no bundle, or is damaged. */
#define SPARSETUNE_BAD_BUNDLE 2
/* The plan is for another device; plans for GPUs are not run by this library. */
#define SPARSETUNE_OTHER_DEVICE 3
/* The plan was measured with other kernels than this library's: tune again. */
#define SPARSETUNE_STALE 4
/* The bundle was written without values: update them first. */
#define SPARSETUNE_NO_VALUES 5
/* Memory or threads are lacking, or the call could not be carried out. */
#define SPARSETUNE_FAILED 6
/* The results of the plan's check are wrong on this host. */
#define SPARSETUNE_WRONG_RESULT 7
/* A fault of this library. */
#define SPARSETUNE_INTERNAL 8

/* Element types. */
#define SPARSETUNE_F32 1
#define SPARSETUNE_F64 2

/* Storage orders. */
#define SPARSETUNE_ROW_MAJOR 1
#define SPARSETUNE_COLUMN_MAJOR 2

/* A plan that is ready to run. */
typedef struct sparsetune_plan sparsetune_plan;

/* A dense operand with a tight leading dimension. */
typedef struct sparsetune_operand {
    uint64_t rows;
    uint64_t cols;
    /* Of the whole operand. */
    uint64_t bytes;
    /* SPARSETUNE_F32 or SPARSETUNE_F64. */
    int32_t element;
    /* SPARSETUNE_ROW_MAJOR or SPARSETUNE_COLUMN_MAJOR. */
    int32_t layout;
} sparsetune_operand;

/* The SPARSETUNE_ABI of the library. */
uint32_t sparsetune_abi(void);

/* Why the last function that failed on this thread did so; "" if none did. Valid until another function fails on it. */
const char *sparsetune_error(void);

/* Opens a bundle, verifies it and prepares its plan; of a file with two bundles both, which one call runs. On failure `*plan` is
 * NULL. The file must not change while it is open. */
int32_t sparsetune_plan_open(const char *path, sparsetune_plan **plan);

/* Frees a plan that no thread uses; does nothing for NULL. */
void sparsetune_plan_close(sparsetune_plan *plan);

/* The dense input: B of a product C = A B, b of a solve T x = b. */
int32_t sparsetune_plan_input(const sparsetune_plan *plan, sparsetune_operand *operand);

/* The output: C of a product, x of a solve. */
int32_t sparsetune_plan_output(const sparsetune_plan *plan, sparsetune_operand *operand);

/* Entries of the matrix; 0 for NULL. */
uint64_t sparsetune_plan_entries(const sparsetune_plan *plan);

/* 1 if the plan computes C = alpha A B + beta C, else 0. */
int32_t sparsetune_plan_accumulates(const sparsetune_plan *plan);

/* Warning `index` of what differs from the host that the plan was measured on; NULL from their number on. Valid until the plan
 * is closed. */
const char *sparsetune_plan_warning(const sparsetune_plan *plan, size_t index);

/* One call on operands as `sparsetune_plan_input` and `sparsetune_plan_output` state them, each aligned as its elements; aligned
 * to 64 bytes they are the fastest. They must not overlap. The result is complete on return. `alpha` and `beta` must be 1 and 0 unless the plan accumulates; with
 * beta = 0, c is not read. */
int32_t sparsetune_plan_run(const sparsetune_plan *plan, const void *b, void *c, double alpha, double beta);

/* Replaces the values of the matrix, in the order of its entries: by rows, in each by columns. The pattern stays. On failure the
 * old values stay. How near an approximate plan (families `sweeps` and `inverse`) comes was measured with the values before: with
 * others its error is not known. */
int32_t sparsetune_plan_update_values(sparsetune_plan *plan, const double *values, size_t count);

/* Runs the bundle's own check: inputs drawn from a seed, sampled outputs compared with those that were computed in float64. The
 * largest error, as a share of its bound, goes to `*worst` unless that is NULL. For the values that the bundle was made with. */
int32_t sparsetune_plan_check(const sparsetune_plan *plan, double *worst);

#ifdef __cplusplus
}
#endif

#endif
