/* Runs the bundles that program.rs wrote: a product and a solve with the matrix that has 4 on its diagonal and -1 beside it, in
 * float64, and files that are no bundles. Prints nothing unless something is wrong. */
#include "sparsetune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 200
#define COLS 3
#define ENTRIES (3 * ROWS - 2)

static int faults = 0;

#define EXPECT(condition)                                                                       \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            printf("line %d: %s fails; last error: %s\n", __LINE__, #condition, sparsetune_error()); \
            faults += 1;                                                                        \
        }                                                                                       \
    } while (0)

static void check_operand(const sparsetune_operand *operand) {
    EXPECT(operand->rows == ROWS);
    EXPECT(operand->cols == COLS);
    EXPECT(operand->bytes == ROWS * COLS * sizeof(double));
    EXPECT(operand->element == SPARSETUNE_F64);
    EXPECT(operand->layout == SPARSETUNE_ROW_MAJOR);
}

static sparsetune_plan *opened(const char *path) {
    sparsetune_plan *plan = NULL;
    sparsetune_operand operand;
    EXPECT(sparsetune_plan_open(path, &plan) == SPARSETUNE_OK);
    if (plan == NULL) {
        exit(1);
    }
    EXPECT(sparsetune_plan_input(plan, &operand) == SPARSETUNE_OK);
    check_operand(&operand);
    EXPECT(sparsetune_plan_output(plan, &operand) == SPARSETUNE_OK);
    check_operand(&operand);
    EXPECT(sparsetune_plan_entries(plan) == ENTRIES);
    EXPECT(sparsetune_plan_warning(plan, 1000) == NULL);
    return plan;
}

/* Row `row` of A X, with `diagonal` on A's diagonal. */
static double times(const double *x, int row, int col, double diagonal) {
    double sum = diagonal * x[row * COLS + col];
    if (row > 0) {
        sum -= x[(row - 1) * COLS + col];
    }
    if (row + 1 < ROWS) {
        sum -= x[(row + 1) * COLS + col];
    }
    return sum;
}

static void multiply(const char *path, const double *b) {
    static double c[ROWS * COLS], values[ENTRIES];
    double worst = -1.0;
    int i, entry = 0;
    sparsetune_plan *plan = opened(path);
    EXPECT(sparsetune_plan_accumulates(plan) == 1);
    EXPECT(sparsetune_plan_check(plan, &worst) == SPARSETUNE_OK);
    EXPECT(worst >= 0.0 && worst <= 1.0);
    for (i = 0; i < ROWS * COLS; i++) {
        c[i] = NAN;
    }
    EXPECT(sparsetune_plan_run(plan, b, c, 2.0, 0.0) == SPARSETUNE_OK);
    for (i = 0; i < ROWS * COLS; i++) {
        EXPECT(fabs(c[i] - 2.0 * times(b, i / COLS, i % COLS, 4.0)) < 1e-12);
        c[i] = i;
    }
    EXPECT(sparsetune_plan_run(plan, b, c, 1.0, -3.0) == SPARSETUNE_OK);
    for (i = 0; i < ROWS * COLS; i++) {
        EXPECT(fabs(c[i] - (times(b, i / COLS, i % COLS, 4.0) - 3.0 * i)) < 1e-10);
    }
    for (i = 0; i < ROWS; i++) {
        if (i > 0) {
            values[entry++] = -1.0;
        }
        values[entry++] = 7.0;
        if (i + 1 < ROWS) {
            values[entry++] = -1.0;
        }
    }
    EXPECT(entry == ENTRIES);
    EXPECT(sparsetune_plan_update_values(plan, values, ENTRIES - 1) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(strstr(sparsetune_error(), "597 values") != NULL);
    EXPECT(sparsetune_plan_update_values(plan, values, ENTRIES) == SPARSETUNE_OK);
    EXPECT(sparsetune_plan_run(plan, b, c, 1.0, 0.0) == SPARSETUNE_OK);
    for (i = 0; i < ROWS * COLS; i++) {
        EXPECT(fabs(c[i] - times(b, i / COLS, i % COLS, 7.0)) < 1e-12);
    }
    EXPECT(sparsetune_plan_check(plan, NULL) == SPARSETUNE_BAD_ARGUMENT);
    values[5] = NAN;
    EXPECT(sparsetune_plan_update_values(plan, values, ENTRIES) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(sparsetune_plan_run(plan, c, c + 1, 1.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(strcmp(sparsetune_error(), "b and c overlap") == 0);
    EXPECT(sparsetune_plan_run(plan, NULL, c, 1.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(sparsetune_plan_run(plan, (const char *)b + 1, c, 1.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    sparsetune_plan_close(plan);
}

static void solve(const char *path, const double *b) {
    static double x[ROWS * COLS];
    int i;
    sparsetune_plan *plan = opened(path);
    EXPECT(sparsetune_plan_accumulates(plan) == 0);
    EXPECT(sparsetune_plan_check(plan, NULL) == SPARSETUNE_OK);
    EXPECT(sparsetune_plan_run(plan, b, x, 1.0, 0.0) == SPARSETUNE_OK);
    for (i = 0; i < ROWS * COLS; i++) {
        double before = i < COLS ? 0.0 : x[i - COLS];
        EXPECT(fabs(4.0 * x[i] - before - b[i]) < 1e-12);
    }
    EXPECT(sparsetune_plan_run(plan, b, x, 2.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    sparsetune_plan_close(plan);
}

/* One call for both triangles, with ones on the diagonal of the lower one, and new values for both. */
static void solve_both(const char *path, const double *b) {
    static double x[ROWS * COLS], y[ROWS * COLS], values[ENTRIES];
    int i, round, entry = 0;
    sparsetune_plan *plan = opened(path);
    EXPECT(sparsetune_plan_accumulates(plan) == 0);
    EXPECT(sparsetune_plan_check(plan, NULL) == SPARSETUNE_OK);
    for (i = 0; i < ROWS; i++) {
        if (i > 0) {
            values[entry++] = -0.5;
        }
        values[entry++] = 8.0;
        if (i + 1 < ROWS) {
            values[entry++] = -0.5;
        }
    }
    for (round = 0; round < 2; round++) {
        double diagonal = round == 0 ? 4.0 : 8.0, beside = round == 0 ? -1.0 : -0.5;
        EXPECT(sparsetune_plan_run(plan, b, x, 1.0, 0.0) == SPARSETUNE_OK);
        for (i = 0; i < ROWS * COLS; i++) {
            y[i] = diagonal * x[i] + (i + COLS < ROWS * COLS ? beside * x[i + COLS] : 0.0);
        }
        for (i = 0; i < ROWS * COLS; i++) {
            double before = i < COLS ? 0.0 : beside * y[i - COLS];
            EXPECT(fabs(y[i] + before - b[i]) < 1e-10);
        }
        EXPECT(sparsetune_plan_update_values(plan, values, ENTRIES - 1) == SPARSETUNE_BAD_ARGUMENT);
        EXPECT(sparsetune_plan_update_values(plan, values, ENTRIES) == SPARSETUNE_OK);
    }
    EXPECT(sparsetune_plan_run(plan, b, x, 2.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    sparsetune_plan_close(plan);
}

int main(int argc, char **argv) {
    static double b[ROWS * COLS];
    sparsetune_plan *plan = (sparsetune_plan *)(void *)b;
    int i;
    if (argc != 6) {
        printf("usage: program PRODUCT SOLVE DAMAGED OTHER_DEVICE BOTH\n");
        return 2;
    }
    for (i = 0; i < ROWS * COLS; i++) {
        b[i] = sin(i * 0.7);
    }
    EXPECT(sparsetune_abi() == SPARSETUNE_ABI);
    EXPECT(strcmp(sparsetune_error(), "") == 0);
    EXPECT(sparsetune_plan_open(argv[3], &plan) == SPARSETUNE_BAD_BUNDLE);
    EXPECT(plan == NULL);
    EXPECT(sparsetune_plan_open("/nowhere/plan.stplan", &plan) == SPARSETUNE_BAD_BUNDLE);
    EXPECT(sparsetune_plan_open(argv[4], &plan) == SPARSETUNE_OTHER_DEVICE);
    EXPECT(sparsetune_plan_open(argv[1], NULL) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(sparsetune_plan_open(NULL, &plan) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(sparsetune_plan_run(NULL, b, b, 1.0, 0.0) == SPARSETUNE_BAD_ARGUMENT);
    EXPECT(sparsetune_plan_entries(NULL) == 0);
    sparsetune_plan_close(NULL);
    multiply(argv[1], b);
    solve(argv[2], b);
    solve_both(argv[5], b);
    return faults == 0 ? 0 : 1;
}
